// The tabs of an object with its events, and with what the user may do.
import { html, useState, useEffect, useMemo, Failure, Loading, Age } from "./ui.js";
import { get, send, watch } from "./api.js";

// Events are those about an object, live.
export function Events({ object }) {
  const [s, set] = useState({});
  const uid = object.metadata.uid, namespace = object.metadata.namespace;
  useEffect(() => {
    let gone = false, end, timer, tries = 0;
    const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/events` : "/api/v1/events", query = { fieldSelector: "involvedObject.uid=" + uid };
    const load = async () => {
      end?.();
      try {
        const list = await get(path, { ...query, limit: 500 });
        if (gone) return;
        set({ events: new Map(list.items.map((e) => [e.metadata.uid, e])) });
        end = watch(path, { ...query, resourceVersion: list.metadata.resourceVersion }, {
          event: (type, e) => set((old) => {
            const events = new Map(old.events);
            type === "DELETED" ? events.delete(e.metadata.uid) : events.set(e.metadata.uid, e);
            return { events };
          }),
          state: (state) => state === "expired" && load(),
        });
      } catch (error) {
        if (gone) return;
        set((old) => ({ ...old, error }));
        if (!error.code || error.code >= 500) timer = setTimeout(load, Math.min(500 * 2 ** tries++, 5000));
      }
    };
    load();
    return () => {
      gone = true;
      clearTimeout(timer);
      end?.();
    };
  }, [uid]);
  if (s.error && !s.events) return html`<${Failure} error=${s.error} />`;
  if (!s.events) return html`<${Loading} />`;
  const moment = (e) => e.series?.lastObservedTime || e.lastTimestamp || e.eventTime || e.metadata.creationTimestamp;
  const all = [...s.events.values()].sort((a, b) => Date.parse(moment(b)) - Date.parse(moment(a))).slice(0, 500);
  if (!all.length) return html`<p class="quiet">There are no events about it.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Events"><table class="events" aria-label="Events">
    <thead><tr><th scope="col">Last</th><th scope="col">Type</th><th scope="col">Reason</th><th scope="col">Message</th><th scope="col">From</th><th scope="col" class="number">Count</th></tr></thead>
    <tbody>
      ${all.map(
        (e) => html`<tr key=${e.metadata.uid}>
          <td><${Age} of=${moment(e)} /></td>
          <td class=${e.type === "Warning" ? "warn" : ""}>${e.type}</td>
          <td><bdi>${e.reason}</bdi></td>
          <td class="wrap"><bdi>${(e.message || "").slice(0, 4000)}</bdi></td>
          <td><bdi>${e.source?.component || e.reportingComponent || ""}</bdi></td>
          <td class="number">${e.series?.count || e.count || 1}</td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}

// Rights asks for each verb whether the user may.
export function Rights({ resource, namespace, name }) {
  const [answers, setAnswers] = useState({});
  const questions = useMemo(
    () => [{ sub: "", verbs: resource.verbs }, ...resource.subresources.map((s) => ({ sub: s.name, verbs: s.verbs }))].flatMap((q) => q.verbs.map((verb) => ({ verb, sub: q.sub, id: q.sub + " " + verb }))).slice(0, 120),
    [resource],
  );
  useEffect(() => {
    const abort = new AbortController();
    let next = 0;
    setAnswers({});
    const work = async () => {
      while (next < questions.length && !abort.signal.aborted) {
        const q = questions[next++];
        try {
          const r = await send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", { apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes: { verb: q.verb, group: resource.group, version: resource.version, resource: resource.resource, subresource: q.sub, namespace, name: q.verb === "create" && !q.sub ? "" : name } } }, { signal: abort.signal });
          setAnswers((old) => ({ ...old, [q.id]: r.status }));
        } catch (error) {
          if (!abort.signal.aborted) setAnswers((old) => ({ ...old, [q.id]: { error } }));
        }
      }
    };
    for (let i = 0; i < 4; i++) work();
    return () => abort.abort();
  }, [resource, namespace, name]);
  const groups = [...new Set(questions.map((q) => q.sub))];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="What I may do"><table class="rights" aria-label="What I may do">
    <tbody>
      ${groups.map(
        (sub) => html`<tr key=${sub}>
          <th scope="row">${sub ? "/" + sub : resource.kind}</th>
          <td>
            ${questions.filter((q) => q.sub === sub).map((q) => {
              const a = answers[q.id];
              return html`<span key=${q.verb} class=${"right " + (!a ? "" : a.error ? "warn" : a.allowed ? "yes" : "no")} title=${a?.error?.message || a?.reason || a?.evaluationError || ""}>
                <span aria-hidden="true">${!a ? "…" : a.error ? "?" : a.allowed ? "✓" : "✕"}</span> ${q.verb}<span class="hear">${!a ? "" : a.error ? " not known" : a.allowed ? " allowed" : " not allowed"}</span>
              </span>`;
            })}
          </td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}
