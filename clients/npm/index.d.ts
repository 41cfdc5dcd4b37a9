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

/** A server that is ready. */
export interface Server {
  /** The path of a kubeconfig, for KubeConfig.loadFromFile or the variable KUBECONFIG. */
  readonly kubeconfig: string;
  /** Stops the server. What it kept in memory is gone. */
  stop(): Promise<void>;
  [Symbol.asyncDispose]?(): Promise<void>;
}

/** Starts a Kubernetes API server, and resolves when it is ready. */
export function kelson(options?: Options): Promise<Server>;
export default kelson;
