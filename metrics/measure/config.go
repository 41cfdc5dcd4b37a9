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

// What has a configuration that is read again when it changes.
const (
	Encryption     = "encryption"
	Authentication = "authentication"
	Authorization  = "authorization"
)

// ConfigMetrics returns what the metrics of a configuration are called: one counts
// by status and server how often it was read again, one has the time of the last
// time, and one tells by server and hash which it is.
func ConfigMetrics(what string) (reloads, last, info string) {
	prefix := "apiserver_" + what + "_config_controller_"
	return prefix + "automatic_reloads_total", prefix + "automatic_reload_last_timestamp_seconds", prefix + "last_config_info"
}

// ConfigRead notes the configuration that is in use.
func ConfigRead(to Sink, what string, data []byte) {
	if to != nil {
		_, _, info := ConfigMetrics(what)
		to.Series(info, server(), Hash(data)).Observe(1)
	}
}

// ConfigReloaded counts that a configuration was read again, and is in use unless
// there is an error.
func ConfigReloaded(to Sink, what string, data []byte, err error) {
	if to == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "failure"
	}
	reloads, last, _ := ConfigMetrics(what)
	to.Series(reloads, status, server()).Observe(1)
	to.Series(last, status, server()).Observe(float64(time.Now().UnixNano()) / 1e9)
	if err == nil {
		ConfigRead(to, what, data)
	}
}

// ServerName tells servers of a cluster apart: it is the same for those on one
// machine, as it is for kube-apiserver.
func ServerName() string {
	host, _ := os.Hostname()
	var parts []byte
	for _, part := range []string{host, "kube-apiserver"} {
		parts = append(binary.BigEndian.AppendUint16(parts, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(parts)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// server is the name as metrics have it.
func server() string { return Hash([]byte(ServerName())) }

// Hash is how metrics name what may be long, or should not be seen.
func Hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
