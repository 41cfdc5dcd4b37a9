// What the page is drawn with.
export { render, createContext, Fragment } from "preact";
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useReducer } from "preact/hooks";
export { html } from "htm/preact";
