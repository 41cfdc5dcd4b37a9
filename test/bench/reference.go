package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// The reference server is a process that does the least that a server of this kind can
// do, with the HTTP/2 server and TLS of Go: it answers reads with bytes that it has, and
// writes when they are appended to a file that is synced. What an operation of another
// server costs in its terms depends little on the machine, and hardly on what else goes
// on there, as long as both are measured at the same time.

// referenceCommand is the command of this program that serves it.
const referenceCommand = "reference"

// Works of the reference server.
const (
	writeAlone = "write, 1 client"
	writeMany  = "write, 16 clients"
	writeQuiet = "write, 300 connections, 60 a second"
	readAlone  = "read of 1 KB, 1 client"
	readSmall  = "read of 1 KB, 16 clients"
	readLarge  = "read of 8 MB, 1 client"
)

const largeBytes = 8 << 20

// referenceWork returns a work by its name.
func referenceWork(name string) operation {
	writes := func(workers int) func(context.Context, *meter, int) error {
		body := configMap("reference", "new", "")
		return func(ctx context.Context, m *meter, count int) error {
			return m.loop(ctx, workers, count, func(ctx context.Context, worker, _ int) error {
				_, err := m.target.client.send(ctx, worker, request{method: http.MethodPost, path: "/write", body: body})
				return err
			})
		}
	}
	switch name {
	case writeQuiet:
		body := configMap("reference", "new", "")
		return operation{name: name, count: 600, work: overMany(300, func(*target, int) string { return "/small" },
			atRate(60, func(ctx context.Context, _ *meter, c *client, i int) error {
				_, err := c.send(ctx, i%300, request{method: http.MethodPost, path: "/write", body: body})
				return err
			}))}
	case writeAlone:
		return operation{name: name, count: 300, work: writes(1)}
	case writeMany:
		return operation{name: name, count: 1000, work: writes(16)}
	case readAlone:
		return operation{name: name, count: 600, work: list("/small", asJSON, 1)}
	case readSmall:
		return operation{name: name, count: 2000, work: list("/small", asJSON, 16)}
	default:
		return operation{name: readLarge, count: 10, work: list("/large", asJSON, 1)}
	}
}

// startReference starts the reference server, which is this program.
func startReference(dir string) (*servers.Server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	v := &servers.Server{Name: "reference", URL: "https://" + listener.Addr().String(), TLS: &tls.Config{InsecureSkipVerify: true}}
	cmd := exec.Command(program, referenceCommand, "-dir", dir)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = append(os.Environ(), referenceVariable+"=1")
	return v, v.StartProcess(dir, "reference", cmd)
}

// referenceVariable tells a test binary, which is the program in a test, that it is to serve.
const referenceVariable = "BENCH_REFERENCE"

// inheritedListener is the first of exec.Cmd's ExtraFiles.
const inheritedListener = 3

// serveReference serves until the context ends.
func serveReference(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet(referenceCommand, flag.ContinueOnError)
	dir := fs.String("dir", ".", "folder for what is written")
	if err := fs.Parse(args); err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(inheritedListener, "listener"))
	if err != nil {
		return err
	}
	log, err := openSyncedLog(filepath.Join(*dir, "log"))
	if err != nil {
		return err
	}
	defer log.close()
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	small, large := []byte(configMap("reference", "read", "")), bytes.Repeat([]byte(filler), largeBytes/len(filler))
	mux := http.NewServeMux()
	answer := func(body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }
	}
	mux.HandleFunc("GET /readyz", answer([]byte("ok")))
	mux.HandleFunc("GET /small", answer(small))
	mux.HandleFunc("GET /large", answer(large))
	mux.HandleFunc("POST /write", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = log.append(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	})
	s := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}}
	go func() {
		<-ctx.Done()
		_ = s.Close()
	}()
	if err := s.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// syncedLog is a file to which records are appended; those that wait share a sync.
type syncedLog struct {
	file  *os.File
	queue chan record
	ended chan struct{}
}

type record struct {
	text []byte
	done chan error
}

func openSyncedLog(name string) (*syncedLog, error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	l := &syncedLog{file: file, queue: make(chan record, 256), ended: make(chan struct{})}
	go l.run()
	return l, nil
}

func (l *syncedLog) run() {
	defer close(l.ended)
	var batch []record
	var text []byte
	for first := range l.queue {
		batch, text = append(batch[:0], first), append(text[:0], first.text...)
		for waiting := len(l.queue); waiting > 0; waiting-- {
			next := <-l.queue
			batch, text = append(batch, next), append(text, next.text...)
		}
		_, err := l.file.Write(text)
		err = errors.Join(err, l.file.Sync())
		for _, r := range batch {
			r.done <- err
		}
	}
}

// append returns when the record is on disk.
func (l *syncedLog) append(text []byte) error {
	r := record{text, make(chan error, 1)}
	l.queue <- r
	return <-r.done
}

func (l *syncedLog) close() {
	close(l.queue)
	<-l.ended
	_ = l.file.Close()
}

// selfSigned returns a new certificate for loopback.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// calibrate does an amount of work without a network and returns the CPU seconds that it
// took: what a start is measured in.
func calibrate() (float64, error) {
	before := servers.SelfTime()
	text := []byte(pod("calibration", 1))
	for range 200 {
		var object any
		if err := json.Unmarshal(text, &object); err != nil {
			return 0, err
		}
		out, err := json.Marshal(object)
		if err != nil {
			return 0, err
		}
		sha256.Sum256(out)
	}
	return (servers.SelfTime() - before).Seconds(), nil
}
