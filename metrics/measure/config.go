package measure

import (
	"crypto/sha256"
	"fmt"
	"os"
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
		to.Series(info, server(), hash(data)).Observe(1)
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

// server tells this server from others of the cluster.
func server() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return hash([]byte(host))
}

func hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
