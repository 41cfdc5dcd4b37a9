// Moments of the past as people write them: 14:05, 10m, 2026-05-01T14:05:00Z, or a revision.

const units = { s: 1, m: 60, h: 3600, d: 86400 };

// parseMoment returns a moment as the pages of history want it, a revision or a time of RFC
// 3339; "" is now. It throws an Error for what is none.
export function parseMoment(text, now = Date.now()) {
  const t = (text || "").trim();
  if (t === "" || t === "now") return "";
  if (/^[1-9]\d{0,17}$/.test(t)) return t;
  if (/^(\d+(\.\d+)?[smhd])+$/.test(t)) {
    const seconds = [...t.matchAll(/(\d+(?:\.\d+)?)([smhd])/g)].reduce((n, [, count, unit]) => n + Number(count) * units[unit], 0);
    return new Date(now - seconds * 1000).toISOString();
  }
  const clock = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(t);
  if (clock && clock[1] < 24 && clock[2] < 60 && (clock[3] || 0) < 60) {
    const at = new Date(now);
    at.setHours(Number(clock[1]), Number(clock[2]), Number(clock[3] || 0), 0);
    if (at > now) at.setDate(at.getDate() - 1);
    return at.toISOString();
  }
  const at = /^\d{4}-\d\d-\d\d/.test(t) ? new Date(t.replace(" ", "T")) : new Date(NaN);
  if (Number.isNaN(at.getTime())) throw new Error(`“${t}” is not a moment: write a revision (812), a time (14:05, 2026-05-01 14:05), or how long ago it was (10m).`);
  return at.toISOString();
}

export const isRevision = (moment) => /^\d+$/.test(moment);

// clock is a time for people, without the day if that is today.
export function clock(moment) {
  const at = new Date(moment);
  const today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}
