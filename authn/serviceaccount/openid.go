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

// This file serves the OpenID discovery documents of the service account issuer.

// Paths of the discovery documents, with which others verify tokens.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)

// KeysMedia is the media type of KeysPath.
const KeysMedia = "application/jwk-set+json"

// Documents are the discovery document and the key set (JWKS) of an issuer.
type Documents struct {
	Configuration, Keys []byte
	// MaxAge is the max-age of their Cache-Control header; NewDocuments sets an hour.
	MaxAge time.Duration
}

// NewDocuments creates the documents. The key set is at jwksURI or, if that is empty,
// below address.
func NewDocuments(issuer, jwksURI, address string, keys *Keys) (*Documents, error) {
	if keys == nil || len(keys.published) == 0 {
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
	for _, key := range keys.published {
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
	if d.Keys, err = json.Marshal(jose.JSONWebKeySet{Keys: keys.published}); err != nil {
		return nil, err
	}
	return d, nil
}

// ServeConfiguration serves ConfigurationPath.
func (d *Documents) ServeConfiguration(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, status.JSON, d.Configuration)
}

// ServeKeys serves KeysPath.
func (d *Documents) ServeKeys(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, KeysMedia, d.Keys)
}

func (d *Documents) serve(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	if !status.Only(w, r, contentType) {
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(d.MaxAge.Seconds())))
	_, _ = w.Write(body) // the client may have gone
}
