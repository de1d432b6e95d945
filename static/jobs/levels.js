// How serious a line is, by the words that loggers, Python and launchers write. Only its look depends on it.

const ERROR = /\b(?:ERROR|CRITICAL|FATAL)\b|^\s*(?:\[rank\d+\]:\s*)?(?:Traceback \(most recent call last\)|[\w.]*(?:Error|Exception|Interrupt)(?::|$))/;
const WARNING = /\bWARN(?:ING)?\b|Warning:/;
const DEBUG = /\bDEBUG\b/;
const LONGEST = 400; // such words stand near the start of a line

/** "error", "warning", "debug" or "". */
export function levelOf(text) {
  const start = text.length > LONGEST ? text.slice(0, LONGEST) : text;
  if (ERROR.test(start)) return "error";
  if (WARNING.test(start)) return "warning";
  return DEBUG.test(start) ? "debug" : "";
}
