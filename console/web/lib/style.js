// loadStyle loads a style sheet once, and resolves when it applies. A view that awaits it
// at the top of its module is never drawn without its style.
const loading = new Map();

export function loadStyle(name) {
  if (!loading.has(name)) {
    loading.set(
      name,
      new Promise((resolve) => {
        const link = document.createElement("link");
        link.rel = "stylesheet";
        link.href = "/assets/" + name;
        link.onload = link.onerror = resolve;
        document.head.append(link);
      }),
    );
  }
  return loading.get(name);
}
