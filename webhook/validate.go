package webhook

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateURL validates the URL of a webhook.
func ValidateURL(path *field.Path, text string) field.ErrorList {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(path, "url must be a valid URL: "+err.Error()+form)}
	}
	var errs field.ErrorList
	if u.Scheme != "https" {
		errs = append(errs, field.Invalid(path, u.Scheme, "'https' is the only allowed URL scheme"+form))
	}
	if u.Host == "" {
		errs = append(errs, field.Invalid(path, u.Host, "host must be specified"+form))
	}
	if u.User != nil {
		errs = append(errs, field.Invalid(path, u.User.String(), "user information is not permitted in the URL"))
	}
	if u.Fragment != "" {
		errs = append(errs, field.Invalid(path, u.Fragment, "fragments are not permitted in the URL"))
	}
	if u.RawQuery != "" {
		errs = append(errs, field.Invalid(path, u.RawQuery, "query parameters are not permitted in the URL"))
	}
	return errs
}

// ValidateService validates the service of a webhook.
func ValidateService(path *field.Path, namespace, name string, urlPath *string, port int32) field.ErrorList {
	var errs field.ErrorList
	// kube-apiserver has these two field names mixed up, and clients see it.
	if namespace == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if name == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	if problems := validation.IsValidPortNum(int(port)); problems != nil {
		errs = append(errs, field.Invalid(path.Child("port"), port, "port is not valid: "+strings.Join(problems, ", ")))
	}
	if urlPath == nil || *urlPath == "" || *urlPath == "/" {
		return errs
	}
	path = path.Child("path")
	if *urlPath == "//" {
		return append(errs, field.Invalid(path, *urlPath, "segment[0] may not be empty"))
	}
	if !strings.HasPrefix(*urlPath, "/") {
		errs = append(errs, field.Invalid(path, *urlPath, "must start with a '/'"))
	}
	for i, segment := range strings.Split(strings.TrimSuffix((*urlPath)[1:], "/"), "/") {
		if segment == "" {
			errs = append(errs, field.Invalid(path, *urlPath, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, problem := range validation.IsDNS1123Subdomain(segment) {
			errs = append(errs, field.Invalid(path, *urlPath, fmt.Sprintf("segment[%d]: %v", i, problem)))
		}
	}
	return errs
}

// ValidateCABundle validates the CA bundle of a webhook.
func ValidateCABundle(path *field.Path, bundle []byte) field.ErrorList {
	if _, err := parseCABundle(bundle); err != nil {
		return field.ErrorList{field.Invalid(path, bundle, err.Error())}
	}
	return nil
}

// parseCABundle parses a CA bundle; the error names the first certificate that is not
// valid.
func parseCABundle(bundle []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if pool.AppendCertsFromPEM(bundle) {
		return pool, nil
	}
	const what = "unable to load root certificates: "
	for rest := bundle; len(rest) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New(what + "unable to parse bytes as PEM block")
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf(what+"failed to parse certificate: %w", err)
		}
	}
	return nil, errors.New(what + "no valid certificate authority data seen")
}
