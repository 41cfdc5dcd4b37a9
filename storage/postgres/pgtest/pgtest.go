//go:build unix

// Package pgtest runs a real PostgreSQL for a test: the programs of the distribution
// (Debian's package postgresql), in a folder of its own, as an ordinary user where the
// test runs as root. Start at Start. It is for tests only.
//
//	db := pgtest.Start(t)
//	b, err := postgres.Open(ctx, postgres.Options{DSN: db.DSN(), AllowNoSync: true})
//
// Clients reach the database through a proxy on a loopback port, which stays when the
// database is killed and started again, and can cut connections.
//
// Unless Sync is given, the database does not wait for the disk: it survives Kill, but
// would not survive a power cut.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const startTimeout = 60 * time.Second

// Option changes how Start sets up the database.
type Option func(*settings)

type settings struct {
	sync   bool
	config []string
	access []string
	tls    *ServerTLS
}

// Sync makes the database wait for the disk. Use it in benchmarks.
func Sync() Option { return func(s *settings) { s.sync = true } }

// Set adds a line to postgresql.conf.
func Set(line string) Option { return func(s *settings) { s.config = append(s.config, line) } }

// Access adds a line before all others to pg_hba.conf, which says who has to have a
// password. Connections by way of the proxy are local ones there.
func Access(line string) Option { return func(s *settings) { s.access = append(s.access, line) } }

// DB is a database server. Its methods must be called from the test's goroutine, unless
// they say otherwise.
type DB struct {
	*Proxy
	tb     testing.TB
	bin    string
	dir    string // the data folder is below it, and the socket in it
	name   string // of the data folder
	port   int    // of the socket, and of TCP with TLS
	runAs  *syscall.Credential
	server *exec.Cmd // nil while stopped
	log    *os.File
	exited chan error
}

// find returns the folder of PostgreSQL's programs.
func find() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: there is no initdb in the path or in /usr/lib/postgresql")
	}
	slices.SortFunc(found, func(a, b string) int { return versionOf(a) - versionOf(b) })
	return filepath.Dir(found[len(found)-1]), nil
}

func versionOf(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return n
}

// Start starts a database, or skips the test, and says so, where PostgreSQL is not
// installed. It is stopped and removed when the test ends.
func Start(tb testing.TB, opts ...Option) *DB {
	tb.Helper()
	bin, err := find()
	if err != nil {
		tb.Skipf("pgtest: %v", err)
	}
	var set settings
	for _, o := range opts {
		o(&set)
	}
	db := newDB(tb, bin)
	db.run("initdb", "-D", db.data(), "-U", "kelson", "--auth=trust", "--no-locale", "-E", "UTF8", "--no-sync")
	config := []string{
		"listen_addresses = ''", "unix_socket_directories = '" + db.dir + "'", "max_connections = 200",
		"shared_buffers = 128MB", "max_wal_size = 1GB", "logging_collector = off",
		"wal_level = replica", "max_wal_senders = 4", "hot_standby = on",
	}
	if !set.sync {
		config = append(config, "fsync = off", "full_page_writes = off")
	}
	db.configure(append(config, set.config...))
	if set.tls != nil {
		set.access = append(set.access, db.requireTLS(*set.tls)...)
	}
	if len(set.access) > 0 {
		file := filepath.Join(db.data(), "pg_hba.conf")
		rest, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, append([]byte(strings.Join(set.access, "\n")+"\n"), rest...), 0o600)
		}
		if err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
	}
	db.Restart()
	return db
}

// newDB makes the folder of a database, and the proxy before it.
func newDB(tb testing.TB, bin string) *DB {
	tb.Helper()
	// Not TempDir: the path of a socket has at most 107 bytes. And a folder of root's, where
	// TMPDIR may be, is closed to the user that the database runs as.
	base := ""
	if os.Geteuid() == 0 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "kelson-pg")
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	db := &DB{tb: tb, bin: bin, dir: dir, name: "data", port: 5432}
	tb.Cleanup(db.close)
	if os.Geteuid() == 0 {
		if db.runAs, err = ordinaryUser(); err == nil {
			err = os.Chown(dir, int(db.runAs.Uid), int(db.runAs.Gid))
		}
		if err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
	}
	if db.Proxy, err = newProxy(target{"unix", db.socket()}); err == nil {
		db.log, err = os.Create(filepath.Join(dir, "log"))
	}
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return db
}

// ordinaryUser returns who the database runs as if the test is root, whom PostgreSQL
// refuses.
func ordinaryUser() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("the test runs as root, and there is no user postgres or nobody to run PostgreSQL as")
}

func (db *DB) data() string   { return filepath.Join(db.dir, db.name) }
func (db *DB) socket() string { return filepath.Join(db.dir, fmt.Sprintf(".s.PGSQL.%d", db.port)) }

// DSN returns the connection string by way of the proxy.
func (db *DB) DSN() string {
	return fmt.Sprintf("postgres://kelson@%s/postgres?sslmode=disable", db.Addr())
}

// SocketDSN returns the connection string by way of the Unix socket.
func (db *DB) SocketDSN() string {
	return fmt.Sprintf("host=%s port=%d user=kelson dbname=postgres sslmode=disable", db.dir, db.port)
}

func (db *DB) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(db.bin, program), args...)
	cmd.Dir = db.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"} // no PGPORT and the like
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: db.runAs, Setpgid: true}
	return cmd
}

// Run runs a program of PostgreSQL against the database, as its administrator.
func (db *DB) Run(program string, args ...string) {
	db.tb.Helper()
	db.run(program, append([]string{"-h", db.dir, "-p", strconv.Itoa(db.port), "-U", "kelson"}, args...)...)
}

// Dir returns the folder of the database, to which its programs may write.
func (db *DB) Dir() string { return db.dir }

func (db *DB) run(program string, args ...string) {
	db.tb.Helper()
	if out, err := db.command(program, args...).CombinedOutput(); err != nil {
		db.tb.Fatalf("pgtest: %s: %v\n%s", program, err, out)
	}
}

// configure appends lines to postgresql.conf.
func (db *DB) configure(lines []string) {
	db.tb.Helper()
	f, err := os.OpenFile(filepath.Join(db.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		db.tb.Fatalf("pgtest: %v", err)
	}
}

// Restart starts a database that was killed, with its data, and waits until it accepts
// connections.
func (db *DB) Restart() {
	db.tb.Helper()
	if db.server != nil {
		db.tb.Fatal("pgtest: the database is running")
	}
	if err := db.start(); err != nil {
		db.tb.Fatalf("pgtest: %v", err)
	}
}

func (db *DB) start() error {
	cmd := db.command("postgres", "-D", db.data())
	cmd.Stdout, cmd.Stderr = db.log, db.log
	// On Linux, a test that is killed leaves no database behind. The signal is that of the
	// end of the thread which has started the process: it has to stay.
	killWithParent(cmd.SysProcAttr)
	started, exited := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	db.server, db.exited = cmd, exited
	for deadline := time.Now().Add(startTimeout); ; {
		if db.accepts() == nil {
			return nil
		}
		select {
		case err := <-db.exited:
			db.server = nil
			return fmt.Errorf("the database has ended: %w\n%s", err, db.lastLog())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the database does not accept connections after %v\n%s", startTimeout, db.lastLog())
		}
	}
}

// accepts tries to connect.
func (db *DB) accepts() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, db.SocketDSN())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (db *DB) lastLog() []byte {
	text, _ := os.ReadFile(db.log.Name())
	lines := bytes.Split(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-20):], []byte("\n"))
}

// Kill ends the database and all its processes without notice: kill -9.
func (db *DB) Kill() {
	if db.server == nil {
		return
	}
	_ = db.server.Process.Signal(syscall.SIGSTOP) // so that it starts no more children
	pids := children(db.server.Process.Pid)
	_ = db.server.Process.Signal(syscall.SIGKILL)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-db.exited
	// The children hold the shared memory until they are gone.
	for _, pid := range pids {
		for deadline := time.Now().Add(startTimeout); isRunning(pid) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	db.server = nil
	db.Cut()
}

// Pause stops the server process and its children, as if the machine hung; the function
// that it returns lets them go on.
func (db *DB) Pause() (resume func()) {
	// The server first, so that there are no more children. It stops at once, but for a call
	// of the kernel that it is in: that may be a fork.
	pids := []int{db.server.Process.Pid}
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	for !isStopped(pids[0]) {
		runtime.Gosched()
	}
	pids = append(pids, children(pids[0])...)
	for _, pid := range pids[1:] {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// children returns the processes whose parent is a process.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if fields := afterName(text); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// isRunning reports whether a process is there and has not ended: one whose parent is
// gone may stay for a while as a zombie.
func isRunning(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := afterName(text)
	return err == nil && len(fields) > 0 && fields[0] != "Z"
}

// isStopped reports whether a process was stopped by a signal, or has ended.
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := afterName(text)
	return err != nil || len(fields) == 0 || fields[0] == "T" || fields[0] == "Z"
}

// afterName returns the fields of /proc/PID/stat after the name: the state, the parent
// and so on.
func afterName(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// Standby starts a standby of the database that replicates from it. The primary waits for
// it, if it is configured to.
func (db *DB) Standby() *DB {
	db.tb.Helper()
	s := newDB(db.tb, db.bin)
	s.run("pg_basebackup", "-D", s.data(), "-h", db.dir, "-p", strconv.Itoa(db.port), "-U", "kelson", "-R", "-X", "stream", "--no-sync", "-c", "fast")
	s.configure([]string{
		"unix_socket_directories = '" + s.dir + "'",
		"listen_addresses = ''", fmt.Sprintf("port = %d", s.port),
		fmt.Sprintf("primary_conninfo = 'host=%s port=%d user=kelson application_name=standby'", db.dir, db.port),
	})
	// -R wrote a primary_conninfo without the name, into a file that is read later.
	if err := os.WriteFile(filepath.Join(s.data(), "postgresql.auto.conf"), nil, 0o600); err != nil {
		db.tb.Fatalf("pgtest: %v", err)
	}
	s.Restart()
	return s
}

// Promote makes a standby the primary.
func (db *DB) Promote() {
	db.tb.Helper()
	db.run("pg_ctl", "promote", "-D", db.data(), "-w")
}

func (db *DB) close() {
	db.Kill()
	if db.Proxy != nil {
		db.Proxy.close()
	}
	if db.log != nil {
		_ = db.log.Close()
	}
	if db.tb.Failed() {
		db.tb.Logf("pgtest: the end of the database's log:\n%s", db.lastLog())
	}
	// The last child may still write.
	for range 100 {
		if os.RemoveAll(db.dir) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Proxy forwards connections from a loopback port to the database.
type Proxy struct {
	listener net.Listener
	*links
}

// target is where a database listens.
type target struct{ network, address string }
