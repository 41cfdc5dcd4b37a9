// useFill makes an element end where the window ends, whatever is above it.
import { useEffect } from "./ui.js";

export function useFill(ref, inputs, least = 240) {
  useEffect(() => {
    const fit = () => {
      const e = ref.current;
      if (!e || !e.offsetParent) return;
      const top = e.getBoundingClientRect().top + scrollY;
      const height = Math.max(least, Math.floor(innerHeight - top - parseFloat(getComputedStyle(document.getElementById("main")).paddingBottom))) + "px";
      if (e.style.height !== height) e.style.height = height;
    };
    fit();
    const observer = new ResizeObserver(fit);
    observer.observe(document.body);
    for (let e = ref.current; e && e.id !== "main"; e = e.parentElement) if (e.previousElementSibling) observer.observe(e.previousElementSibling);
    window.addEventListener("resize", fit);
    return () => {
      observer.disconnect();
      window.removeEventListener("resize", fit);
    };
  }, inputs);
}
