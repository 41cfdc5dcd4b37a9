package connect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	apicore "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	//lint:ignore SA1019 clientspdy.Upgrader returns its Connection
	apistream "k8s.io/apimachinery/pkg/util/httpstream"
	apiforward "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/proxy"
	apiremote "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/resource"
)

// Older kubelets support only SPDY where current clients use WebSocket. For them the
// server translates: the streams of a command are copied one by one, port forwarding is
// tunneled through the WebSocket.

const (
	idleTimeout   = 4 * time.Hour
	statusTimeout = 10 * time.Second
	pingPeriod    = 5 * time.Second
)

// tryTranslate handles the request and returns true if it needs translation.
func (c *Connector) tryTranslate(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error)) bool {
	switch {
	case to.Translate == resource.ToStreams && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		c.translateStreams(w, r, to)
	case to.Translate == resource.ToTunnel && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		c.tunnel(w, r, to, fail)
	default:
		return false
	}
	return true
}

// translateStreams copies the streams of a command between a WebSocket and SPDY. Once the
// WebSocket is open, errors are sent over its error channel.
func (c *Connector) translateStreams(w http.ResponseWriter, r *http.Request, to *resource.Location) {
	on := func(name string) bool { return to.URL.Query().Get(name) == "1" }
	channels := []wsstream.ChannelType{
		apiremote.StreamStdIn:  channel(on("input"), wsstream.ReadChannel),
		apiremote.StreamStdOut: channel(on("output"), wsstream.WriteChannel),
		apiremote.StreamStdErr: channel(on("error"), wsstream.WriteChannel),
		apiremote.StreamErr:    wsstream.WriteChannel,
		apiremote.StreamResize: wsstream.ReadChannel,
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{apiremote.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	conn.SetIdleTimeout(idleTimeout)
	_, streams, err := conn.Open(w, r)
	if err != nil {
		c.log.V(1).Info("a WebSocket could not be opened", "path", r.URL.Path, "error", err.Error())
		return
	}
	defer conn.Close()
	// The first message tells the client that the connection is open.
	first := apiremote.StreamErr
	options := remotecommand.StreamOptions{Tty: on("tty")}
	if on("input") {
		options.Stdin = streams[apiremote.StreamStdIn]
	}
	if on("error") {
		first, options.Stderr = apiremote.StreamStdErr, streams[apiremote.StreamStdErr]
	}
	if on("output") {
		first, options.Stdout = apiremote.StreamStdOut, streams[apiremote.StreamStdOut]
	}
	if _, err := streams[first].Write(nil); err != nil {
		return
	}
	if options.Tty {
		options.TerminalSizeQueue = newTerminalSizes(streams[apiremote.StreamResize])
	}
	status, err := json.Marshal(commandStatus(c.runSPDY(r.Context(), to, options)))
	if err == nil {
		conn.SetWriteDeadline(statusTimeout)
		_, _ = streams[apiremote.StreamErr].Write(status)
	}
}

func channel(on bool, t wsstream.ChannelType) wsstream.ChannelType {
	if on {
		return t
	}
	return wsstream.IgnoreChannel
}

// runSPDY runs a command over SPDY.
func (c *Connector) runSPDY(ctx context.Context, to *resource.Location, options remotecommand.StreamOptions) error {
	ctx, guard := withGuard(ctx)
	way, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: c.transport(to), PingPeriod: pingPeriod})
	if err != nil {
		return err
	}
	command, err := remotecommand.NewSPDYExecutorRejectRedirects(way, boundedUpgrader{clientspdy.NewUpgraderForStreaming(way), guard}, http.MethodPost, to.URL)
	if err != nil {
		return err
	}
	return command.StreamWithContext(ctx, options)
}

// boundedUpgrader bounds what a kubelet has the server keep: its answer, which package spdy reads whole if it
// is an error, and the stream in which it says how a command ended, which package remotecommand does.
type boundedUpgrader struct {
	clientspdy.Upgrader
	guard *answerGuard
}

// NewConnection implements clientspdy.Upgrader.
func (u boundedUpgrader) NewConnection(resp *http.Response) (apistream.Connection, error) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		u.guard.release()
	}
	conn, err := u.Upgrader.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	return boundedConnection{conn}, nil
}

type boundedConnection struct{ apistream.Connection }

// CreateStream implements httpstream.Connection.
func (c boundedConnection) CreateStream(headers http.Header) (apistream.Stream, error) {
	stream, err := c.Connection.CreateStream(headers)
	if err == nil && headers.Get(apicore.StreamType) == apicore.StreamTypeError {
		stream = boundedStream{stream, &io.LimitedReader{R: stream, N: maxErrorBody}}
	}
	return stream, err
}

// boundedStream ends after so many bytes.
type boundedStream struct {
	apistream.Stream
	limit *io.LimitedReader
}

// Read implements io.Reader.
func (s boundedStream) Read(p []byte) (int, error) { return s.limit.Read(p) }

// terminalSizes reads resize messages of the client's terminal.
type terminalSizes struct {
	*json.Decoder
	// limit limits the size of a message: the decoder buffers an incomplete one.
	limit *io.LimitedReader
}

// maxResizeBytes is the largest resize message in bytes, with white space.
const maxResizeBytes = 4 << 10

func newTerminalSizes(stream io.Reader) terminalSizes {
	one := &io.LimitedReader{R: stream}
	return terminalSizes{json.NewDecoder(one), one}
}

// Next implements remotecommand.TerminalSizeQueue.
func (s terminalSizes) Next() *remotecommand.TerminalSize {
	var size remotecommand.TerminalSize
	s.limit.N = maxResizeBytes
	if err := s.Decode(&size); err != nil {
		return nil
	}
	return &size
}

// commandStatus returns the Status of a finished command.
func commandStatus(err error) metav1.Status {
	var exit exec.CodeExitError
	var known *apierrors.StatusError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &known):
		return known.ErrStatus
	case errors.As(err, &exit) && exit.Exited():
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: apiremote.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type: apiremote.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitStatus()),
			}}},
		}
	}
	return apierrors.NewInternalError(err).ErrStatus
}

// tunnel connects to SPDY for a client that tunnels it through a WebSocket.
func (c *Connector) tunnel(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error)) {
	ctx, guard := withGuard(r.Context())
	conn, err := proxy.DialURL(ctx, to.URL, c.transport(to))
	if err != nil {
		fail(fmt.Errorf("error dialing backend: %w", err))
		return
	}
	defer conn.Close()
	if err := spdyRequest(r, to.URL).Write(conn); err != nil {
		fail(fmt.Errorf("error sending request: %w", err))
		return
	}
	buffered := bufio.NewReader(conn)
	resp, err := http.ReadResponse(buffered, nil)
	guard.release()
	if err != nil {
		fail(err)
		return
	}
	defer func() {
		_ = conn.Close() // first: closing a body reads it to its end
		_ = resp.Body.Close()
	}()
	switch {
	case resp.StatusCode >= http.StatusBadRequest:
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(resp.Body, maxErrorBody))
		return
	case resp.StatusCode != http.StatusSwitchingProtocols:
		fail(fmt.Errorf("invalid upgrade response: status code %d", resp.StatusCode))
		return
	case !strings.EqualFold(resp.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31):
		fail(errors.New("unable to upgrade: missing upgrade headers in response"))
		return
	}
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	if protocol := resp.Header.Get(httpstream.HeaderProtocolVersion); protocol != "" {
		upgrader.Subprotocols = []string{apiforward.WebsocketsSPDYTunnelingPrefix + protocol}
	}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	client := portforward.NewTunnelingConnectionWithLogger(c.log, socket)
	defer client.Close()
	done := make(chan error, 2)
	pass := func(to io.Writer, from io.Reader) {
		done <- protect.Call(func() error {
			_, err := io.Copy(to, from)
			return err
		})
	}
	go pass(conn, client)
	go pass(client, buffered)
	protect.Repeat(<-done)
}

// spdyRequest converts a WebSocket request to one for SPDY.
func spdyRequest(r *http.Request, to *url.URL) *http.Request {
	out := r.Clone(r.Context())
	out.Method, out.URL, out.Body, out.ContentLength = http.MethodPost, to, nil, 0
	for _, name := range []string{"Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions", wsstream.WebSocketProtocolHeader} {
		out.Header.Del(name)
	}
	out.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	out.Header.Del(httpstream.HeaderProtocolVersion)
	for _, protocol := range websocket.Subprotocols(r) {
		if spdyProtocol, ok := strings.CutPrefix(protocol, apiforward.WebsocketsSPDYTunnelingPrefix); ok && strings.HasSuffix(protocol, apiforward.KubernetesSuffix) {
			out.Header.Add(httpstream.HeaderProtocolVersion, spdyProtocol)
		}
	}
	return out
}
