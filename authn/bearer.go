package authn

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/apikeel/kelson/request"
)

// webSocketPrefix is the prefix of the subprotocol in which browsers send a token,
// since they cannot set the Authorization header of a WebSocket.
const webSocketPrefix = "base64url.bearer.authorization.k8s.io."

const spaceWarning = "the provided Authorization header contains extra space before the bearer token, and is ignored"

// bearer authenticates with the token in the Authorization header.
type bearer struct{ tokens Tokens }

// Authenticate implements Authenticator.
func (b bearer) Authenticate(r *http.Request) (*Identity, error) {
	token := bearerToken(r)
	if token == "" {
		return nil, nil
	}
	return requireKnown(b.tokens.AuthenticateToken(r.Context(), token, nil))
}

func bearerToken(r *http.Request) string {
	values := r.Header["Authorization"]
	if len(values) == 0 {
		return ""
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	if len(scheme) != len("bearer") || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, more := strings.Cut(rest, " ")
	if token == "" && more {
		request.From(r.Context()).Warn(spaceWarning)
	}
	return token
}

// requireKnown turns "no authenticator knows the token" into errInvalidToken.
func requireKnown(id *Identity, err error) (*Identity, error) {
	if id == nil && err == nil {
		err = errInvalidToken
	}
	return id, err
}

// webSocket authenticates with a token among the subprotocols of a WebSocket request,
// and removes it from them.
type webSocket struct{ tokens Tokens }

// Authenticate implements Authenticator.
func (w webSocket) Authenticate(r *http.Request) (*Identity, error) {
	if !request.IsWebSocket(r) {
		return nil, nil
	}
	token, others, err := protocolToken(r.Header["Sec-Websocket-Protocol"])
	if token == "" || err != nil {
		return nil, err
	}
	id, err := requireKnown(w.tokens.AuthenticateToken(r.Context(), token, nil))
	if err == nil {
		r.Header.Set("Sec-Websocket-Protocol", strings.Join(others, ","))
	}
	return id, err
}

// protocolToken returns the token among the subprotocols, and the other subprotocols.
func protocolToken(values []string) (token string, others []string, err error) {
	seen := false
	for _, v := range values {
		for protocol := range strings.SplitSeq(v, ",") {
			protocol = strings.TrimSpace(protocol)
			encoded, ok := strings.CutPrefix(protocol, webSocketPrefix)
			if !ok {
				others = append(others, protocol)
				continue
			}
			if seen {
				return "", nil, errors.New("multiple base64.bearer.authorization tokens specified")
			}
			seen = true
			decoded, err := base64.RawURLEncoding.DecodeString(encoded)
			if err != nil {
				return "", nil, errors.New("invalid base64.bearer.authorization token encoding")
			}
			if !utf8.Valid(decoded) {
				return "", nil, errors.New("invalid base64.bearer.authorization token")
			}
			token = string(decoded)
		}
	}
	// One subprotocol must be left for the server to select.
	if token != "" && len(others) == 0 {
		return "", nil, errors.New("missing additional subprotocol")
	}
	return token, others, nil
}
