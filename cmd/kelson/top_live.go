package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	accounts "github.com/apikeel/kelson/usage"
)

// liveTop is kelson top on a terminal: the table is drawn again and again, and keys
// change what it shows.
type liveTop struct {
	query accounts.Query
	every time.Duration
	ask   func(ctx context.Context, q accounts.Query) (*accounts.Top, error)

	top      *accounts.Top // the last answer; nil before there is one
	failure  error         // of the last question
	selected int
	before   []accounts.Query // where Backspace leads to
}

// Sequences for the terminal: move to the corner and erase what is there, the other
// screen and back.
const (
	redraw      = "\x1b[H\x1b[J"
	otherScreen = "\x1b[?1049h\x1b[?25l"
	firstScreen = "\x1b[?25h\x1b[?1049l"
)

// onTerminal runs until the user quits.
func (l *liveTop) onTerminal(ctx context.Context, in, out *os.File) error {
	state, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	defer func() {
		_, _ = io.WriteString(out, firstScreen)
		_ = term.Restore(int(in.Fd()), state)
	}()
	_, _ = io.WriteString(out, otherScreen)
	return l.run(ctx, in, out, func() (width, height int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	})
}

// run asks and draws until a key or the end of the input or of ctx ends it. The goroutine
// that reads keys ends with the input.
func (l *liveTop) run(ctx context.Context, in io.Reader, out io.Writer, size func() (width, height int)) error {
	keys := make(chan string)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		defer close(keys)
		for buf := make([]byte, 16); ; {
			n, err := in.Read(buf)
			if err != nil {
				return
			}
			for _, key := range splitKeys(string(buf[:n])) {
				select {
				case keys <- key:
				case <-ended:
					return
				}
			}
		}
	}()
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		l.top, l.failure = l.ask(ctx, l.query)
		if err := l.draw(out, size); err != nil {
			return err
		}
		for again := false; !again; {
			select {
			case key, ok := <-keys:
				if !ok || isQuit(key) {
					return nil
				}
				if again = l.press(key); !again {
					if err := l.draw(out, size); err != nil {
						return err
					}
				}
			case <-tick.C:
				again = true
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// splitKeys returns the keys of an input: characters, and the sequences of arrow keys.
func splitKeys(input string) (keys []string) {
	for input != "" {
		n := 1
		if strings.HasPrefix(input, "\x1b[") {
			n = min(3, len(input))
		}
		keys, input = append(keys, input[:n]), input[n:]
	}
	return keys
}

func isQuit(key string) bool { return key == "q" || key == "\x03" || key == "\x04" }

// press changes what is shown, and reports whether the server has to be asked.
func (l *liveTop) press(key string) (ask bool) {
	byKey := map[string]accounts.Dimension{"u": accounts.ByUser, "a": accounts.ByAgent, "r": accounts.ByResource, "n": accounts.ByNamespace, "l": accounts.ByLevel, "v": accounts.ByVerb}
	sortKey := map[string]string{"c": "cpu", "e": "requests", "b": "bytes", "m": "memory", "s": "seats", "w": "watches", "x": "refused"}
	rows := 0
	if l.top != nil {
		rows = len(l.top.Rows)
	}
	if by, ok := byKey[key]; ok {
		l.query.By, l.selected = by, 0
		return true
	}
	if sort, ok := sortKey[key]; ok {
		l.query.Sort, l.selected = sort, 0
		return true
	}
	switch key {
	case "j", "\x1b[B":
		l.selected = max(0, min(l.selected+1, rows-1))
	case "k", "\x1b[A":
		l.selected = max(0, l.selected-1)
	case "\r", "\n":
		if l.selected < rows {
			l.enter(l.top.Rows[l.selected].Name)
			return true
		}
	case "\x7f", "\b":
		if n := len(l.before); n > 0 {
			l.query, l.before, l.selected = l.before[n-1], l.before[:n-1], 0
			return true
		}
	}
	return false
}

// enter shows what a row is made of, by the next dimension that is not fixed yet.
func (l *liveTop) enter(name string) {
	l.before = append(l.before, l.query)
	only := maps.Clone(l.query.Only)
	if only == nil {
		only = map[accounts.Dimension]string{}
	}
	only[l.query.By] = name
	l.query.Only, l.selected = only, 0
	for _, by := range []accounts.Dimension{accounts.ByUser, accounts.ByAgent, accounts.ByResource, accounts.ByVerb, accounts.ByNamespace, accounts.ByLevel} {
		if _, fixed := only[by]; !fixed {
			l.query.By = by
			return
		}
	}
}

// draw writes the screen.
func (l *liveTop) draw(out io.Writer, size func() (width, height int)) error {
	width, height := size()
	l.query.Rows = max(1, height-8)
	var screen bytes.Buffer
	switch {
	case l.failure != nil && !errors.Is(l.failure, context.Canceled):
		fmt.Fprintf(&screen, "%s\n", shownName(l.failure.Error()))
	case l.top != nil:
		l.selected = max(0, min(l.selected, len(l.top.Rows)-1))
		columns := tabwriter.NewWriter(&screen, 0, 8, 2, ' ', 0)
		if err := writeTop(columns, l.top, l.selected); err != nil {
			return err
		}
		if err := columns.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(&screen, "\nby: u a r n l v   sort: c e b m s w x   j k Enter Backspace   q quits")
	text := redraw
	for i, line := range strings.Split(screen.String(), "\n") {
		if i == height-1 {
			break
		}
		if i > 0 {
			text += "\r\n"
		}
		text += cut(line, width)
	}
	_, err := io.WriteString(out, text)
	return err
}

// cut shortens a line to a width.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}
