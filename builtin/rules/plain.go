package rules

import (
	"strings"

	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Nearly all names are right, and regular expressions take ten times as long as a look at
// each character to say so. What the functions here do not know to be right is left to
// Kubernetes' own, which also have the messages.

// isPlainSubdomain reports whether a value is sure to be a DNS subdomain.
func isPlainSubdomain(value string) bool {
	if len(value) > validation.DNS1123SubdomainMaxLength {
		return false
	}
	inside := false // of a label, behind a letter or digit
	for i := range len(value) {
		switch c := value[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			inside = true
		case c == '-' && (inside || i > 0 && value[i-1] == '-'):
			inside = false
		case c == '.' && inside:
			inside = false
		default:
			return false
		}
	}
	return inside
}

// isPlainLabel reports whether a value is sure to be a DNS label.
func isPlainLabel(value string) bool {
	return len(value) <= validation.DNS1123LabelMaxLength && isPlainSubdomain(value) && !strings.Contains(value, ".")
}

// isPlainKey reports whether a value is sure to be a key of labels: a name, which may have a
// subdomain and a slash before it.
func isPlainKey(value string) bool {
	prefix, name, ok := strings.Cut(value, "/")
	if !ok {
		name = value
	} else if !isPlainSubdomain(prefix) {
		return false
	}
	if len(name) > validation.LabelValueMaxLength {
		return false
	}
	end := false // of the name could be here
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			end = true
		case (c == '-' || c == '_' || c == '.') && i > 0:
			end = false
		default:
			return false
		}
	}
	return end
}

// DNSLabel reports a value that is not a DNS label.
func (e *Errors) DNSLabel(p *field.Path, value string) {
	if !isPlainLabel(value) {
		e.InvalidEach(p, value, validation.IsDNS1123Label(value))
	}
}

// DNSSubdomain reports a value that is not a DNS subdomain.
func (e *Errors) DNSSubdomain(p *field.Path, value string) {
	if !isPlainSubdomain(value) {
		e.InvalidEach(p, value, validation.IsDNS1123Subdomain(value))
	}
}

// LabelKey reports a value that is not a key of labels.
func (e *Errors) LabelKey(p *field.Path, value string) {
	if !isPlainKey(value) {
		e.Add(metavalidation.ValidateLabelName(value, p)...)
	}
}

// CheckPortName returns what is wrong with the name of a port.
func CheckPortName(name string) []string {
	const most = 15
	if len(name) <= most && isPlainLabel(name) && !strings.Contains(name, "--") && strings.Trim(name, "0123456789-") != "" {
		return nil
	}
	return validation.IsValidPortName(name)
}

// CheckDataKey returns what is wrong with a key of the data of config maps and secrets.
func CheckDataKey(key string) []string {
	if isPlainDataKey(key) {
		return nil
	}
	return validation.IsConfigMapKey(key)
}

// isPlainDataKey reports whether a value is sure to be a key of data.
func isPlainDataKey(key string) bool {
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return key != "" && key != "." && !strings.HasPrefix(key, "..") && len(key) <= validation.DNS1123SubdomainMaxLength
}
