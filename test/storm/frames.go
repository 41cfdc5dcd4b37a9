//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	unreadName     = "unread"
	unreadBytes    = 45_000 // a third more as JSON
	crowdedStreams = 100
	crowdedWindow  = 1 << 20
	// fromNow is the query of a watch without initial events.
	fromNow = "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
)

// createUnread creates the object that the clients of the unread scenario ask for.
func createUnread(ctx context.Context, url string) error {
	c := newClient(adminUser, clientOptions{})
	defer c.close()
	body, err := json.Marshal(fields{
		"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": unreadName}, "data": fields{"value": randomText(unreadBytes)},
	})
	if err != nil {
		return err
	}
	_, err = c.call(ctx, http.MethodPost, url+"/api/v1/namespaces/"+namespace+"/secrets", mediaJSON, body)
	if isStatus(err, http.StatusConflict) {
		return nil
	}
	return err
}

// crowded is what a client asks for on all streams of a connection at once.
type crowded struct {
	path string
	// window is for what is answered; 0 takes no byte of it.
	window uint32
}

// crowdConnection asks for the same on all streams of a connection, and asks again when the server has
// answered or has given up, until the storm ends.
func (s *storm) crowdConnection(ctx context.Context, user string, what crowded) {
	for ctx.Err() == nil {
		if err := s.crowdOnce(ctx, user, what); err != nil && ctx.Err() == nil {
			s.crowd.note(broken, err.Error(), 0)
			_ = wait(ctx, retryAfterBreak)
		}
	}
}

func (s *storm) crowdOnce(ctx context.Context, user string, what crowded) error {
	server, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(ctx, "tcp", server.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, conn), hpack.NewEncoder(&block)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: what.window})
	for i := range uint32(crowdedStreams) {
		block.Reset()
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: server.Host},
			{Name: ":path", Value: what.path}, {Name: "authorization", Value: "Bearer " + user},
		} {
			_ = encoder.WriteField(field)
		}
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	}
	if _, err := io.Copy(conn, &out); err != nil {
		s.crowd.note(unfinished, "", 0)
		return nil // the server has cut it off while it still sends
	}
	for ended := 0; ended < crowdedStreams; {
		frame, err := framer.ReadFrame()
		if err != nil {
			s.crowd.note(unfinished, "", 0)
			return nil // the server has cut it off, or the storm is over
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			ended++
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				ended++
			}
		case *http2.DataFrame:
			if len(frame.Data()) > 0 && what.window == 0 {
				return fmt.Errorf("%d bytes without a window", len(frame.Data()))
			}
			if frame.StreamEnded() { // a watch that was refused: an answer of few bytes
				s.crowd.note(refused, "", 0)
				ended++
			}
		}
	}
	return wait(ctx, 10*time.Millisecond)
}
