// The tab of an object with its history, and the way back.
import { html, useState, useEffect, Failure, Loading, Dialog, Age, toast, FieldChanges } from "./ui.js";
import { pathOf, request, get } from "./api.js";
import { parse } from "./yaml.js";
import { historyQuery, Review, Diffed } from "./shown.js";

// History lists the versions that the server keeps, and goes back to one.
export function History({ resource, namespace, name, object, deleted, reload }) {
  const [s, set] = useState({});
  const [compare, setCompare] = useState(); // {revision, before, after, back}
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const query = historyQuery(resource, namespace, name);
  const version = object?.metadata.resourceVersion;
  const load = async (token, signal) => {
    try {
      const page = await get("/debug/kelson/history", { ...query, limit: 50, continue: token }, { signal });
      set((old) => ({ kept: page.kept, changes: token ? [...old.changes, ...(page.changes || [])] : page.changes || [], token: page.continue }));
    } catch (e) {
      if (!signal?.aborted) set((old) => ({ ...old, error: e }));
    }
  };
  useEffect(() => {
    const abort = new AbortController();
    load(undefined, abort.signal);
    return () => abort.abort();
  }, [version, Boolean(deleted)]);
  const at = async (revision) => parse(await (await request("/debug/kelson/at", { query: { ...query, at: revision } })).text());
  const path = pathOf(resource, namespace, name);
  const show = async (c, back) => {
    setError();
    setBusy(true);
    try {
      const old = await at(c.revision);
      if (!back) {
        setCompare({ revision: c.revision, title: `Revision ${c.revision} against now`, before: old, after: object });
      } else {
        // The wanted version with what belongs to the present: uid and resourceVersion.
        const m = { ...old.metadata };
        for (const f of ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]) delete m[f];
        const body = { ...old, metadata: m };
        if (deleted) {
          delete body.status;
          const after = parse(await (await request(pathOf(resource, namespace), { method: "POST", type: "application/json", body: JSON.stringify(body), query: { dryRun: "All", fieldManager: "kelson-console" } })).text());
          setCompare({ revision: c.revision, title: `Create it again as it was at revision ${c.revision}`, before: undefined, after, body, back: "POST" });
        } else {
          const now = parse(await (await request(path)).text());
          m.resourceVersion = now.metadata.resourceVersion;
          m.uid = now.metadata.uid;
          if (now.status !== undefined) body.status = now.status;
          const after = parse(await (await request(path, { method: "PUT", type: "application/json", body: JSON.stringify(body), query: { dryRun: "All", fieldManager: "kelson-console" } })).text());
          setCompare({ revision: c.revision, title: `Go back to revision ${c.revision}`, before: now, after, body, back: "PUT" });
        }
      }
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  const goBack = async () => {
    setBusy(true);
    try {
      await request(compare.back === "POST" ? pathOf(resource, namespace) : path, { method: compare.back, type: "application/json", body: JSON.stringify(compare.body), query: { fieldManager: "kelson-console" } });
      toast(`It is as it was at revision ${compare.revision}.`);
      setCompare();
      reload();
    } catch (e) {
      setCompare();
      setError(e);
    }
    setBusy(false);
  };
  if (s.error && !s.changes) return html`<${Failure} error=${s.error} />`;
  if (!s.changes) return html`<${Loading} />`;
  return html`<section class="history">
    ${s.kept?.note && html`<p class="quiet">${s.kept.note}</p>`}
    <${Failure} error=${error} />
    ${!s.changes.length && html`<p class="quiet">The server keeps no change of it${s.kept?.since ? html` (history begins <${Age} of=${s.kept.since} /> ago)` : ""}.</p>`}
    <ol aria-label="Changes, the newest first">
      ${s.changes.map(
        (c, i) => html`<li key=${c.revision}>
          <header>
            <strong class=${c.verb === "delete" ? "bad" : ""}>${{ create: "Created", update: "Changed", delete: "Deleted" }[c.verb] || c.verb}</strong>
            ${c.managers?.length ? html`<span>by <bdi>${c.managers.map((m) => m.name + (m.subresource ? "/" + m.subresource : "")).join(", ")}</bdi></span>` : ""}
            ${c.time && html`<span class="quiet"><${Age} of=${c.time} /> ago</span>`}
            <span class="quiet">revision ${c.revision}</span>
            <span class="push"></span>
            ${c.verb !== "delete" && !(i === 0 && !deleted) &&
            html`<span class="buttons">${!deleted && html`<button disabled=${busy} aria-label=${`Compare with now: revision ${c.revision}`} onClick=${() => show(c, false)}>Compare with now</button>`}
              <button disabled=${busy} aria-label=${deleted ? `Create again: revision ${c.revision}` : `Go back… to revision ${c.revision}`} onClick=${() => show(c, true)}>${deleted ? "Create again" : "Go back…"}</button></span>`}
          </header>
          ${c.fields?.length > 0 && html`<${FieldChanges} fields=${c.fields.slice(0, 60)} />`}
          ${c.fields?.length > 60 && html`<p class="quiet">And ${c.fields.length - 60} more fields.</p>`}
        </li>`,
      )}
    </ol>
    ${s.token && html`<button onClick=${() => load(s.token)}>Older changes</button>`}
    ${compare &&
    (compare.back
      ? html`<${Review} title=${compare.title} resource=${resource} before=${compare.before} after=${compare.after} busy=${busy} confirm=${goBack} close=${() => setCompare()} button=${compare.back === "POST" ? "Create again" : "Go back"} />`
      : html`<${Dialog} title=${compare.title} close=${() => setCompare()}><${Diffed} resource=${resource} before=${compare.before} after=${compare.after} /><//>`)}
  </section>`;
}
