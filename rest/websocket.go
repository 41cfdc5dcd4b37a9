package rest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"

	"github.com/apikeel/kelson/wire"
)

// A watch over a WebSocket sends each event as a message: of text, or of bytes if the events
// are in a binary encoding. Messages of the client are ignored.

// messageWithin is how long the client may take to receive a message.
const messageWithin = 30 * time.Second

// messages is a http.ResponseWriter that sends events as messages.
type messages struct {
	conn *websocket.Conn
	// lengths says that events have their length before them, not a newline behind them.
	lengths bool
	// rest is the beginning of an event.
	rest []byte
	// cancel ends the watch.
	cancel context.CancelFunc
}

// upgradeWatch makes a WebSocket of the connection, and reports whether it did. A request
// that cannot be upgraded is answered. The watch ends with the connection.
func (s *scope) upgradeWatch() bool {
	upgrader := websocket.Upgrader{CheckOrigin: hasOrigin}
	if offered := websocket.Subprotocols(s.r); len(offered) == 1 {
		upgrader.Subprotocols = offered
	}
	conn, err := upgrader.Upgrade(s.w, s.r, nil)
	if err != nil {
		return false
	}
	m := &messages{conn: conn, lengths: s.enc.Format.Media == wire.Protobuf}
	s.context, m.cancel = context.WithCancel(s.context)
	s.w = m
	go func() {
		defer m.cancel()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	}()
	return true
}

// hasOrigin reports whether a request says which page it comes from, as browsers do.
func hasOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	_, err := url.ParseRequestURI(origin)
	return origin != "" && err == nil
}

// Header implements http.ResponseWriter. The header has been sent already.
func (m *messages) Header() http.Header { return http.Header{} }

// WriteHeader implements http.ResponseWriter.
func (m *messages) WriteHeader(int) {}

// Write implements http.ResponseWriter: it sends the events that are complete.
func (m *messages) Write(p []byte) (int, error) {
	m.rest = append(m.rest, p...)
	for {
		event, rest, ok := m.next()
		if !ok {
			if len(m.rest) == 0 {
				m.rest = nil
			}
			return len(p), nil
		}
		m.rest = rest
		if err := m.send(event); err != nil {
			m.cancel()
			return 0, err
		}
	}
}

// next returns the first event that is complete.
func (m *messages) next() (event, rest []byte, ok bool) {
	if !m.lengths {
		end := bytes.IndexByte(m.rest, '\n') + 1
		return m.rest[:end], m.rest[end:], end > 0
	}
	const prefix = 4
	if len(m.rest) < prefix {
		return nil, nil, false
	}
	end := prefix + int(binary.BigEndian.Uint32(m.rest))
	if len(m.rest) < end {
		return nil, nil, false
	}
	return m.rest[prefix:end], m.rest[end:], true
}

func (m *messages) send(event []byte) error {
	if err := m.conn.SetWriteDeadline(time.Now().Add(messageWithin)); err != nil {
		return err
	}
	if m.lengths {
		return m.conn.WriteMessage(websocket.BinaryMessage, event)
	}
	return m.conn.WriteMessage(websocket.TextMessage, event)
}

// FlushError implements what http.ResponseController asks for: messages are sent at once.
func (m *messages) FlushError() error { return nil }

// close ends the connection.
func (m *messages) close() {
	m.cancel()
	_ = m.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_ = m.conn.Close()
}
