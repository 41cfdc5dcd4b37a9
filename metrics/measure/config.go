package measure

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"
)

// Configurations that are reloaded when they change.
const (
	Encryption     = "encryption"
	Authentication = "authentication"
	Authorization  = "authorization"
)

// ConfigMetrics returns the names of the metrics of a configuration: the number of
// reloads by status and server, the time of the last one, and the hash of the current
// configuration by server.
func ConfigMetrics(what string) (reloads, last, info string) {
	prefix := "apiserver_" + what + "_config_controller_"
	return prefix + "automatic_reloads_total", prefix + "automatic_reload_last_timestamp_seconds", prefix + "last_config_info"
}

// ConfigRead records the configuration in use.
func ConfigRead(to Sink, what string, data []byte) {
	if to != nil {
		_, _, info := ConfigMetrics(what)
		to.Series(info, serverLabel(), Hash(data)).Observe(1)
	}
}

// ConfigReloaded counts a reload; without an error data is in use now.
func ConfigReloaded(to Sink, what string, data []byte, err error) {
	if to == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "failure"
	}
	reloads, last, _ := ConfigMetrics(what)
	to.Series(reloads, status, serverLabel()).Observe(1)
	to.Series(last, status, serverLabel()).Observe(float64(time.Now().UnixNano()) / 1e9)
	if err == nil {
		ConfigRead(to, what, data)
	}
}

// KeysWereFetched records that the keys of an issuer of tokens were fetched, or could not
// be.
func KeysWereFetched(to Sink, issuer string, keys []byte, err error) {
	if to == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "failure"
	}
	to.Series(KeysFetched, result, Hash([]byte(issuer)), serverLabel()).Observe(float64(time.Now().UnixNano()) / 1e9)
	if err == nil {
		to.Series(KeysInfo, Hash([]byte(issuer)), serverLabel(), Hash(keys)).Observe(1)
	}
}

// IssuerIsGone removes when the keys of an issuer were fetched, and which they were: its
// tokens are no longer accepted.
func IssuerIsGone(from Sink, issuer string) {
	if f, ok := from.(Forgetter); ok {
		for _, metric := range []string{KeysFetched, KeysInfo} {
			f.Forget(metric, "jwt_issuer_hash", Hash([]byte(issuer)))
		}
	}
}

// ServerName identifies the server in a cluster: servers on the same machine have the
// same name, as with kube-apiserver.
func ServerName() string {
	host, _ := os.Hostname()
	var parts []byte
	for _, part := range []string{host, "kube-apiserver"} {
		parts = append(binary.BigEndian.AppendUint16(parts, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(parts)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// serverLabel is the hash of the name, as labels have it.
func serverLabel() string { return Hash([]byte(ServerName())) }

// Hash is the label value for data that is long or secret.
func Hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
