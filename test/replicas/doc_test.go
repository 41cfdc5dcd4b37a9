// Package replicas runs three servers on three etcd members, or on one PostgreSQL, and disturbs
// them.
//
// Servers and members are processes of their own (process_test.go): the test binary started
// again. All connections between them go through TCP proxies (proxy_test.go) that can cut,
// mute, delay and reset them, each direction for itself. fleet_test.go starts all of it.
//
// While a fault lasts, writers, readers and watchers work on all servers (load_test.go), and
// probes measure for how long each server did not answer (outage_test.go). Afterwards
// checkers compare what clients were told with what is stored (check_test.go): nothing is
// lost or doubled, reads and writes are linearizable, every watch saw the store's own history,
// every address has one owner.
//
// Start at TestReplicas (faults_test.go) and TestPostgres (postgres_test.go), which have the
// tables of faults. The short form runs a few of them; with KELSON_LONG all.
package replicas
