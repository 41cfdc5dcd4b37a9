/** What a server begins with. */
export interface Options {
  /** The program; by default $KELSON_BINARY, or kelson on PATH. */
  binary?: string;
  /** Files or folders with custom resource definitions that are installed before. */
  crds?: string[];
  /** Files or folders with objects that are created before, after the definitions. */
  manifests?: string[];
  /** The user whom the kubeconfig is for, without rights but those that the manifests give; by default the administrator. */
  as?: string;
  /** Groups of that user. */
  groups?: string[];
  /** A folder in which the data stays. */
  keep?: string;
  /** Show the warnings of the server. */
  verbose?: boolean;
  /** Milliseconds until the server has to be ready; 30000 by default. */
  timeout?: number;
}

/** Which requests: an empty field matches any. Requests of the server's own controllers never match. */
export interface Rule {
  /** As in a role; several are separated by commas. */
  verb?: string;
  /** As in a role, with the group: "pods", "pods/status", "deployments.apps". */
  resource?: string;
  namespace?: string;
  name?: string;
  user?: string;
  /** The beginning of the User-Agent header. */
  userAgent?: string;
}

/** What happens to requests: one of delay, fail, drop and loseAnswer. */
export interface Fault {
  rule?: Rule;
  /** A duration, such as "200ms". */
  delay?: string;
  /** An error that is answered instead. */
  fail?: { code: number; reason?: string; message?: string };
  /** The connection breaks before anything is done. */
  drop?: boolean;
  /** The request is done, and the connection breaks before the answer. */
  loseAnswer?: boolean;
  /** How often; always by default. */
  times?: number;
}

/** What a test can do with its server. */
export interface Control {
  /** Keeps the state of the server under a name. */
  save(name?: string): Promise<void>;
  /** Brings a state back. Watches see it as changes. */
  restore(name?: string): Promise<void>;
  /** Installs files or folders. */
  apply(...paths: string[]): Promise<void>;
  /** Returns the path of a kubeconfig for a user. */
  user(name: string, groups?: string[]): Promise<string>;
  /** Adds a fault, and returns its number. */
  fault(fault: Fault): Promise<number>;
  /** Returns how often each fault met a request. */
  hits(): Promise<number[]>;
  clearFaults(): Promise<void>;
  /** Ends watches, and returns how many. */
  endWatches(rule?: Rule): Promise<number>;
  /** Forgets the history, so that clients have to list again. */
  compact(): Promise<void>;
  /** Changes the server's clock, and returns what it shows. */
  clock(change?: { freeze?: string; advance?: string; resume?: boolean; reset?: boolean }): Promise<Date>;
}

/** A server that is ready. */
export interface Server {
  /** The path of a kubeconfig, for KubeConfig.loadFromFile or the variable KUBECONFIG. */
  readonly kubeconfig: string;
  /** Brings back a state, makes requests fail, moves the clock. */
  readonly control: Control;
  /** Stops the server. What it kept in memory is gone. */
  stop(): Promise<void>;
  [Symbol.asyncDispose]?(): Promise<void>;
}

/** Starts a Kubernetes API server, and resolves when it is ready. */
export function kelson(options?: Options): Promise<Server>;
export default kelson;
