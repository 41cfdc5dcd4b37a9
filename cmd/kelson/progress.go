package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage/transfer"
)

// meter prints progress: on a terminal a line that changes, elsewhere a line every few
// seconds.
type meter struct {
	w        io.Writer
	terminal bool
	quit     chan struct{}
	done     chan struct{}

	mu   sync.Mutex
	verb string
	at   transfer.Progress
}

// startMeter starts printing progress; verb is what happened to keys, such as "saved".
// It must be stopped.
func startMeter(w io.Writer, verb string) *meter {
	m := &meter{w: w, verb: verb, terminal: isTerminal(w), quit: make(chan struct{}), done: make(chan struct{})}
	every := 5 * time.Second
	if m.terminal {
		every = 200 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	go func() {
		defer close(m.done)
		defer ticker.Stop()
		m.show(ticker.C)
	}()
	return m
}

func (m *meter) show(tick <-chan time.Time) {
	for {
		select {
		case <-tick:
		case <-m.quit:
			if m.terminal {
				fmt.Fprint(m.w, "\r\x1b[K")
			}
			return
		}
		if m.terminal {
			fmt.Fprintf(m.w, "\r\x1b[K%s", m.line())
		} else {
			fmt.Fprintln(m.w, m.line())
		}
	}
}

func (m *meter) set(verb string, at transfer.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verb, m.at = verb, at
}

func (m *meter) line() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := ""
	if m.at.Total > 0 {
		of = fmt.Sprintf(" of %d", m.at.Total)
	}
	return fmt.Sprintf("%s %d%s keys, %s", m.verb, m.at.Keys, of, size(m.at.Bytes))
}

// stop prints the last line and stops.
func (m *meter) stop() {
	close(m.quit)
	<-m.done
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// size formats a number of bytes.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 1024 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}
