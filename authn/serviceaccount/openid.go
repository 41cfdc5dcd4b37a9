package serviceaccount

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/apikeel/kelson/status"
)

// Where the documents are served from which others learn to verify tokens.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)

// KeysMedia is the format of what is at KeysPath.
const KeysMedia = "application/jwk-set+json"

// Documents are the two that describe an issuer.
type Documents struct {
	Configuration, Keys []byte
	// MaxAge is how long they may be kept; NewDocuments makes it an hour.
	MaxAge time.Duration
}

// NewDocuments describes an issuer and its keys. Where the keys are served is
// either jwksURI or, if that is empty, below the address of the server.
func NewDocuments(issuer, jwksURI, address string, keys *Keys) (*Documents, error) {
	if keys == nil || len(keys.shown) == 0 {
		return nil, errors.New("no keys provided for validating keyset")
	}
	u, err := url.Parse(issuer)
	switch {
	case err != nil:
		return nil, err
	case issuer == "":
		return nil, errors.New("empty issuer URL")
	case u.Scheme != "https":
		return nil, fmt.Errorf("issuer URL must use https scheme, got: %s", issuer)
	case u.RawQuery != "":
		return nil, fmt.Errorf("issuer URL may not include a query, got: %s", issuer)
	case u.Fragment != "":
		return nil, fmt.Errorf("issuer URL may not include a fragment, got: %s", issuer)
	}
	if jwksURI == "" {
		if address == "" {
			return nil, errors.New("either the JWKS URI or the default external address, or both, must be set")
		}
		jwksURI = (&url.URL{Scheme: "https", Host: address, Path: KeysPath}).String()
	}
	if u, err := url.Parse(jwksURI); err != nil {
		return nil, err
	} else if u.Scheme != "https" {
		return nil, fmt.Errorf("jwksURI requires https scheme, parsed as: %v", u)
	}
	var algs []string
	for _, key := range keys.shown {
		algs = append(algs, key.Algorithm)
	}
	slices.Sort(algs)
	d := &Documents{MaxAge: time.Hour}
	if d.Configuration, err = json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{issuer, jwksURI, []string{"id_token"}, []string{"public"}, slices.Compact(algs)}); err != nil {
		return nil, err
	}
	if d.Keys, err = json.Marshal(jose.JSONWebKeySet{Keys: keys.shown}); err != nil {
		return nil, err
	}
	return d, nil
}

// ServeConfiguration answers requests for ConfigurationPath.
func (d *Documents) ServeConfiguration(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, status.JSON, d.Configuration)
}

// ServeKeys answers requests for KeysPath.
func (d *Documents) ServeKeys(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, KeysMedia, d.Keys)
}

func (d *Documents) serve(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	if !status.Only(w, r, contentType) {
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(d.MaxAge.Seconds())))
	_, _ = w.Write(body) // a client that has gone needs no answer
}
