// What is searched for is words, also in an option or a message that was pasted. The search takes a dash for
// "without", and completes words that are on every page to others ("to" to "tokens", "3" to "300"). A command is
// the title of a section.
const QUERY = 2;
const COMMON = /^(an?|and|are|as|at|be|but|by|can|do|for|has|have|in|is|it|its|no|not|of|on|or|so|than|that|the|then|there|this|to|up|use|was|what|which|with|[\d.,x]+([KMG]i?B|ms|s)?)$/i;

function wordsOf(text) {
  const command = text.match(/^\s*layerstream\s+([a-z-]+)\s*$/i);
  if (command) {
    return ["layerstream", ...command[1].split("-")].map((word) => `+title:${word}`).join(" ");
  }
  const words = text.replace(/^\s*layerstream\s+(?=\S)/i, "").split(/[\s"'`()]+/)
    .map((word) => word.replace(/[~^*.,;:!?]+$/, "")).filter(Boolean);
  const telling = words.filter((word) => !COMMON.test(word));
  return (telling.length > 2 ? telling : words).map((word) => word.replace(/^[-+]+/, "")).join(" ");
}

const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  const asks = message?.type === QUERY && typeof message.data === "string";
  return send.call(this, asks ? { ...message, data: wordsOf(message.data) } : message, ...others);
};
