// Numbers as people read them.

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const [unit, one] = bytes < 2 ** 20 ? ["KiB", 1024] : bytes < 2 ** 30 ? ["MiB", 2 ** 20] : ["GiB", 2 ** 30];
  const value = bytes / one;
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
}

export function milliseconds(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const value = seconds * 1e3;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  return value >= 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(2)} ms`;
}

export function rate(perSecond) {
  if (perSecond == null || !Number.isFinite(perSecond)) return "–";
  return perSecond >= 10 ? perSecond.toFixed(0) : perSecond.toFixed(1);
}

export function speed(bytesPerSecond) {
  const value = bytesPerSecond / 1e6;
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} MB/s`;
}

export function duration(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}
