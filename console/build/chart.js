// Charts of numbers over time.
export { default } from "uplot";
