// An object that stays as the server has it.
import { useState, useEffect, useRef } from "./ui.js";
import { pathOf, request, watch, ApiError } from "./api.js";
import { parse } from "./yaml.js";

// useObject reads an object and follows it: {object, deleted, error, state, reload}.
export function useObject(resource, namespace, name) {
  const [s, set] = useState({ state: "loading" });
  const again = useRef();
  useEffect(() => {
    let gone = false, end, timer, tries = 0;
    const abort = new AbortController(), path = pathOf(resource, namespace, name), collection = pathOf(resource, namespace);
    const update = (change) => gone || set((old) => ({ ...old, ...change }));
    const read = async () => parse(await (await request(path, { signal: abort.signal })).text());
    const load = async () => {
      clearTimeout(timer);
      end?.();
      end = undefined;
      try {
        const object = await read();
        if (gone) return;
        tries = 0;
        update({ object, error: undefined, deleted: undefined, state: "live" });
        follow(object.metadata.resourceVersion);
      } catch (error) {
        if (gone) return;
        if (error instanceof ApiError && error.code < 500 && error.code !== 429) {
          set((old) => (error.code === 404 && old.object ? { ...old, deleted: old.deleted || { at: Date.now() }, state: "deleted" } : { ...old, error, state: "failed" }));
          if (error.code === 404) timer = setTimeout(load, 5000);
          return;
        }
        update({ state: "waiting", away: error });
        timer = setTimeout(load, Math.min(300 * 2 ** tries++, 5000));
      }
    };
    // refresh reads the object after an event, which has rounded its numbers; of many events
    // at once it reads for the last one.
    let reading = false, wanted = false;
    const refresh = async () => {
      if (reading) return void (wanted = true);
      reading = true;
      do {
        wanted = false;
        try {
          const object = await read();
          update({ object, deleted: undefined });
        } catch {
          // It has gone meanwhile, and an event will say so.
        }
        await new Promise((resolve) => setTimeout(resolve, 300));
      } while (wanted && !gone);
      reading = false;
    };
    const poll = () => {
      timer = setTimeout(async () => {
        try {
          const object = await read();
          update({ object, deleted: undefined, state: "polled" });
        } catch (error) {
          if (error.code === 404) update({ deleted: { at: Date.now() } });
        }
        if (!gone) poll();
      }, 5000);
    };
    const follow = (resourceVersion) => {
      if (!resource.verbs.includes("watch")) return poll();
      end = watch(collection, { fieldSelector: "metadata.name=" + name.replace(/[\\,=]/g, "\\$&"), resourceVersion }, {
        event: (type, object) => {
          if (object.metadata?.name !== name) return;
          if (type === "DELETED") return update({ deleted: { at: Date.now(), object } });
          refresh();
        },
        state: (state) => {
          if (state === "expired") return load();
          if (state === "refused") return update({ state: "polled" }), poll();
          update({ state });
        },
      });
    };
    again.current = load;
    load();
    return () => {
      gone = true;
      clearTimeout(timer);
      abort.abort();
      end?.();
    };
  }, [resource, namespace, name]);
  return { ...s, reload: () => again.current?.() };
}
