// The process: what it holds, what it reads from the disk, requests that failed, how long it has run.

import { duration, size, speed } from "./format.js";

// `uptime`: seconds, null until the server has sent it.
export function showProcess({ process, disk, models }, uptime) {
  const { anonymous_bytes: held, file_bytes: files, limit_bytes: limit } = process;
  const failed = models.reduce((sum, { errors }) => sum + count(errors), 0);
  const facts = [
    `The process holds ${size(held + files)}${limit == null ? "" : ` of --memory ${size(limit)}`}, ${size(files)} of it library pages`,
    `disk ${speed(disk ?? 0)}`,
    `${failed} ${failed === 1 ? "request" : "requests"} failed`,
  ];
  if (uptime != null) facts.push(`up ${duration(uptime)}`);
  document.getElementById("process").textContent = facts.join(" · ");
}

export const count = (errors) => Object.values(errors ?? {}).reduce((sum, each) => sum + each, 0);
