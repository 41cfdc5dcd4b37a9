package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/metrics/measure"
)

// This file is the table of metric definitions.

const stepDuration = "apiserver_admission_step_admission_duration_seconds"

// admissionFamilies are the metrics of admission.
func admissionFamilies() []described {
	const (
		admission  = "apiserver_admission_"
		conditions = "identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit)."
		whole      = "broken out for each operation and API resource and "
	)
	seconds := []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5}
	check := []float64{0.0000005, 0.001, 0.01, 0.1, 1}
	calls, condition := []string{"name", "type", "operation", "rejected"}, []string{"name", "kind", "type", "operation"}
	validating, mutating := []string{"policy", "policy_binding", "error_type", "enforcement_action"}, []string{"policy", "policy_binding", "error_type"}
	const manifest = "apiserver_manifest_admission_config_controller_"
	reloads := []string{"status", "plugin", "apiserver_id_hash"}
	return []described{
		{counter, manifest + "automatic_reloads_total", "[ALPHA] Total number of automatic reloads of admission manifest configuration split by status, plugin, and apiserver identity.", nil, reloads},
		{gauge, manifest + "automatic_reload_last_timestamp_seconds", "[ALPHA] Timestamp of the last automatic reload of admission manifest configuration split by status, plugin, and apiserver identity.", nil, reloads},
		{info, manifest + "last_config_info", "[ALPHA] Information about the last applied admission manifest configuration with hash as label, split by plugin and apiserver identity.", nil, []string{"plugin", "apiserver_id_hash", "hash"}},
		{histogram, stepDuration, "[STABLE] Admission sub-step latency histogram in seconds, " + whole + "step type (validate or admit).", seconds, calls[1:]},
		{histogram, admission + "controller_admission_duration_seconds", "[STABLE] Admission controller latency histogram in seconds, identified by name and " + whole + "type (validate or admit).", seconds, calls},
		{histogram, admission + "webhook_admission_duration_seconds", "[STABLE] Admission webhook latency histogram in seconds, identified by name and " + whole + "type (validate or admit).", append(seconds[:6:6], 10, 25), calls},
		{counter, admission + "webhook_request_total", "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.", nil,
			[]string{"name", "type", "operation", "code", "rejected"}},
		{counter, admission + "webhook_rejection_count", "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.", nil,
			[]string{"name", "type", "operation", "error_type", "rejection_code"}},
		{counter, admission + "webhook_fail_open_count", "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).", nil, calls[:2]},
		{histogram, admission + "match_condition_evaluation_seconds", "[ALPHA] Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validate or admit).",
			[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, condition},
		{counter, admission + "match_condition_evaluation_errors_total", "[ALPHA] Admission match condition evaluation errors count, " + conditions, nil, condition},
		{counter, admission + "match_condition_exclusions_total", "[ALPHA] Admission match condition evaluation exclusions count, " + conditions, nil, condition},
		{counter, "apiserver_validating_admission_policy_check_total", "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.", nil, validating},
		{histogram, "apiserver_validating_admission_policy_check_duration_seconds", "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.", check, validating},
		{counter, "apiserver_mutating_admission_policy_check_total", "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding.", nil, mutating},
		{histogram, "apiserver_mutating_admission_policy_check_duration_seconds", "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.", check, mutating},
	}
}

// configFamilies are the metrics of reloaded configurations.
func configFamilies() (all []described) {
	labels := []string{"status", "apiserver_id_hash"}
	for _, d := range []struct{ what, stage, total, last string }{
		{measure.Encryption, "[ALPHA]", "Total number of reload successes and failures of encryption configuration split by apiserver identity.", "Timestamp of the last successful or failed automatic reload of encryption configuration split by apiserver identity."},
		{measure.Authentication, "[BETA]", "Total number of automatic reloads of authentication configuration split by status and apiserver identity.", "Timestamp of the last automatic reload of authentication configuration split by status and apiserver identity."},
		{measure.Authorization, "[BETA]", "Total number of automatic reloads of authorization configuration split by status and apiserver identity.", "Timestamp of the last automatic reload of authorization configuration split by status and apiserver identity."},
	} {
		reloads, last, what := measure.ConfigMetrics(d.what)
		all = append(all,
			described{counter, reloads, d.stage + " " + d.total, nil, labels},
			described{gauge, last, d.stage + " " + d.last, nil, labels},
			described{info, what, "[ALPHA] Information about the last applied " + d.what + " configuration with hash as label, split by apiserver identity.", nil, []string{"apiserver_id_hash", "hash"}})
	}
	return all
}

// partFamilies are the metrics of package measure.
func partFamilies() []described {
	const (
		noNames = "Counts the number of requests to servers missing SAN extension in their serving certificate OR the number of connection failures due to the lack of x509 certificate SAN extension missing (either/or, based on the runtime environment)"
		sha1    = "Counts the number of requests to servers with insecure SHA1 signatures in their serving certificate OR the number of connection failures due to the insecure SHA1 signatures (either/or, based on the runtime environment)"
	)
	buckets := prometheus.DefBuckets
	fast := prometheus.ExponentialBuckets(0.001, 2, 15)
	pod, gvr := []string{"request_operation", "resource", "subresource"}, []string{"group", "version", "resource"}
	status, kind, cidr, scope := []string{"status"}, []string{"group", "resource"}, []string{"cidr"}, []string{"scope"}
	turn, flow := []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}, []string{"priority_level", "flow_schema"}
	return []described{
		{histogram, measure.FlowWait, "[BETA] Length of time a request spent waiting in its queue", turn, append(flow[:2:2], "execute")},
		{histogram, measure.FlowExecution, "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem", turn, append(flow[:2:2], "type")},
		{histogram, measure.FlowSeats, "[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness", []float64{1, 2, 4, 8, 16, 32, 64, 100}, flow},
		{histogram, measure.FlowQueue, "[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued", []float64{0, 10, 25, 50, 100, 250, 500, 1000}, flow},
		{histogram, measure.FlowWatches, "[ALPHA] count of watchers for mutating requests in API Priority and Fairness", []float64{0, 1, 10, 100, 1000, 10000}, flow},

		{histogram, measure.CacheLoadDuration, "[ALPHA] Histogram of watch cache initialization duration in seconds, broken by resource type.", []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600}, kind},
		{histogram, measure.CacheReadWait, "[ALPHA] Histogram of time spent waiting for a watch cache to become fresh.", []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3}, kind},

		{counter, measure.AuthorizationDecisions, "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.", nil, []string{"type", "name", "decision"}},
		{histogram, measure.NodeGraphDuration, "[ALPHA] Histogram of duration of graph actions in node authorizer.", prometheus.ExponentialBuckets(0.0001, 2, 12), []string{"operation"}},

		{counter, measure.TokenCacheRequests, "[ALPHA] ", nil, status},
		{histogram, measure.TokenCacheDuration, "[ALPHA] ", buckets, status},
		{counter, measure.TokenCacheFetches, "[ALPHA] ", nil, status},
		{gauge, measure.TokenCacheActive, "[ALPHA] ", nil, status},
		{histogram, measure.JWTLatency, "[ALPHA] Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
			[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, []string{"result", "jwt_issuer_hash"}},
		{gauge, measure.KeysFetched, "[ALPHA] Timestamp of the last successful or failed JWKS fetch split by result, api server identity and jwt issuer for the JWT authenticator.", nil,
			[]string{"result", "jwt_issuer_hash", "apiserver_id_hash"}},
		{info, measure.KeysInfo, "[ALPHA] Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api server identity and jwt issuer.", nil,
			[]string{"jwt_issuer_hash", "apiserver_id_hash", "hash"}},
		{counter, measure.LegacyTokens, "[BETA] Cumulative legacy service account tokens used", nil, nil},
		{counter, measure.LegacyAutoTokens, "[ALPHA] Cumulative auto-generated legacy tokens used", nil, nil},
		{counter, measure.LegacyManualTokens, "[ALPHA] Cumulative manually created legacy tokens used", nil, nil},
		{counter, measure.InvalidLegacyTokens, "[ALPHA] Cumulative invalid auto-generated legacy tokens used", nil, nil},
		{counter, measure.StaleTokens, "[BETA] Cumulative stale projected service account tokens used", nil, nil},
		{counter, measure.ValidTokens, "[BETA] Cumulative valid projected service account tokens used", nil, nil},
		{gauge, measure.SignerKeysFetched, "[ALPHA] Unix Timestamp in seconds of the last successful FetchKeys request", nil, nil},
		{gauge, measure.SignerKeysChanged, "[ALPHA] Unix Timestamp in seconds of the last successful FetchKeys data_timestamp value returned by the external signer", nil, nil},
		{counter, measure.SignerFetches, "[ALPHA] Total attempts at syncing supported JWKs", nil, []string{"code"}},
		{counter, measure.SignerSignatures, "[ALPHA] Total attempts at signing JWT", nil, []string{"code"}},
		{histogram, measure.SignerDuration, "[ALPHA] Request duration and time for calls to external-jwt-signer", []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, []string{"method", "code"}},

		{histogram, measure.CELEvaluation, "[BETA] CEL evaluation time in seconds.", buckets, nil},
		{histogram, measure.CELCompilation, "[BETA] CEL compilation time in seconds.", buckets, nil},
		{counter, measure.CSRDurationsRequested, "[ALPHA] Total number of issued CSRs with a requested duration, sliced by signer (only kubernetes.io signer names are specifically identified)", nil, []string{"signerName"}},
		{counter, measure.CSRDurationsHonored, "[ALPHA] Total number of issued CSRs with a requested duration that was honored, sliced by signer (only kubernetes.io signer names are specifically identified)", nil, []string{"signerName"}},
		{counter, measure.PodLogs, "[ALPHA] Total number of requests for pods/logs sliced by usage type: enforce_tls, skip_tls_allowed, skip_tls_denied", nil, []string{"usage"}},
		{counter, measure.PodLogTLSFailures, "[ALPHA] Total number of requests for pods/logs that failed due to kubelet server TLS verification", nil, nil},
		{counter, measure.WebhookNoNames, "[BETA] " + noNames, nil, nil},
		{counter, measure.WebhookSHA1, "[BETA] " + sha1, nil, nil},
		{counter, measure.AggregatorNoNames, "[ALPHA] " + noNames, nil, nil},
		{counter, measure.AggregatorSHA1, "[ALPHA] " + sha1, nil, nil},
		{counter, measure.PeerRequests, "[ALPHA] Total number of requests that were proxied to a peer kube-apiserver because the local apiserver was not capable of serving it, broken down by 'group', 'version', and 'resource' indicating the GVR of the request. If all three are empty (\"\"), the request is a discovery request.", nil, append([]string{"code"}, gvr...)},
		{counter, measure.PeerProxyErrors, "[ALPHA] Total number of errors encountered while proxying requests to a peer kube apiserver", nil, append([]string{"type"}, gvr...)},
		{counter, measure.PeerDiscoveryErrors, "[ALPHA] Total number of errors encountered while syncing discovery information from a peer kube-apiserver", nil, []string{"type"}},
		{late, measure.DiscoveryPeerHits, "[ALPHA] Counter of number of times discovery was served from peer-aggregated cache", nil, nil},
		{late, measure.DiscoveryPeerMisses, "[ALPHA] Counter of number of times discovery was aggregated across all API servers", nil, nil},
		{late, measure.DiscoveryNoPeer, "[ALPHA] Counter of number of times no-peer (non peer-aggregated) discovery was requested", nil, nil},
		{counter, measure.DialStarts, "[ALPHA] Dial starts, labeled by the protocol (http-connect or grpc) and transport (tcp or uds).", nil, []string{"protocol", "transport"}},
		{histogram, measure.DialDuration, "[ALPHA] Dial latency histogram in seconds, labeled by the protocol (http-connect or grpc), transport (tcp or uds)", []float64{0.005, 0.025, 0.1, 0.5, 2.5, 12.5}, []string{"protocol", "transport"}},
		{counter, measure.DialFailures, "[ALPHA] Dial failure count, labeled by the protocol (http-connect or grpc), transport (tcp or uds), and stage (connect or proxy). The stage indicates at which stage the dial failed", nil, []string{"protocol", "transport", "stage"}},
		{counter, measure.ConversionRequests, "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type", nil, []string{"result", "failure_type"}},
		{histogram, measure.ConversionDuration, "[ALPHA] Conversion webhook request latency", []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60}, []string{"result", "failure_type"}},
		{histogram, measure.CRDConversionDuration, "[ALPHA] CRD webhook conversion duration in seconds", fast, []string{"crd_name", "from_version", "to_version", "succeeded"}},

		{counter, measure.PodSecurityEvaluations, "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.", nil, append([]string{"decision", "policy_level", "policy_version", "mode"}, pod...)},
		{counter, measure.PodSecurityExemptions, "[ALPHA] Number of exempt requests, not counting ignored or out of scope requests.", nil, pod},
		{counter, measure.PodSecurityErrors, "[ALPHA] Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted profile being used for evaluation.", nil, append([]string{"fatal"}, pod...)},

		{histogram, measure.IPAllocationDuration, "[ALPHA] Duration in seconds to allocate a Cluster IP by ServiceCIDR", buckets, cidr},
		{counter, measure.IPAllocations, "[ALPHA] Number of Cluster IPs allocations", nil, []string{"cidr", "scope"}},
		{counter, measure.IPAllocationErrors, "[ALPHA] Number of errors trying to allocate Cluster IPs", nil, []string{"cidr", "scope"}},
		{counter, measure.ServiceRepairErrors, "[ALPHA] Number of reconciliation failures on the nodeport repair reconcile loop", nil, nil},
		{counter, measure.PortAllocations, "[ALPHA] Number of NodePort allocations", nil, scope},
		{counter, measure.PortAllocationErrors, "[ALPHA] Number of errors trying to allocate NodePort", nil, scope},
	}
}

// encryptionFamilies are the metrics of encryption at rest.
func encryptionFamilies() []described {
	key := []string{"transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"}
	return []described{
		{histogram, measure.TransformationDuration, "[ALPHA] Latencies in seconds of value transformation operations.", prometheus.ExponentialBuckets(5e-6, 2, 25), []string{"transformation_type", "transformer_prefix"}},
		{counter, measure.Transformations, "[ALPHA] Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails. The status, resource, and transformation_type fields can be used for alerting purposes. For example, you can monitor for encryption/decryption failures using the transformation_type (e.g., from_storage for decryption and to_storage for encryption). Additionally, these fields can be used to ensure that the correct transformers are applied to each resource.", nil,
			[]string{"resource", "transformation_type", "transformer_prefix", "status"}},
		{counter, measure.DataKeyMisses, "[ALPHA] Total number of cache misses while accessing key decryption key(KEK).", nil, nil},
		{histogram, measure.DataKeyDuration, "[ALPHA] Latencies in seconds of data encryption key(DEK) generation operations.", prometheus.ExponentialBuckets(5e-6, 2, 14), nil},
		{counter, measure.DataKeyFailures, "[ALPHA] Total number of failed data encryption key(DEK) generation operations.", nil, nil},
		{histogram, measure.KMSDuration, "[ALPHA] KMS operation duration with gRPC error code status total.", prometheus.ExponentialBuckets(0.0001, 2, 20), []string{"provider_name", "method_name", "grpc_status_code"}},
		{counter, measure.KMSKeyUses, "[ALPHA] Number of times a keyID is used split by transformation type, provider, and apiserver identity.", nil, key},
		{gauge, measure.KMSKeyLastUse, "[ALPHA] The last time in seconds when a keyID was used.", nil, key},
		{gauge, measure.KMSKeyLastStatus, "[ALPHA] The last time in seconds when a keyID was returned by the Status RPC call.", nil, key[1:]},
		{counter, measure.KMSInvalidKeys, "[ALPHA] Number of times an invalid keyID is returned by the Status RPC call split by error.", nil, []string{"provider_name", "error"}},
		{gauge, measure.KMSSources, "[ALPHA] Number of records in data encryption key (DEK) source cache. On a restart, this value is an approximation of the number of decrypt RPC calls the server will make to the KMS plugin.", nil, []string{"provider_name"}},
		{gauge, measure.KMSCacheFill, "[ALPHA] Percent of the cache slots currently occupied by cached DEKs.", nil, nil},
	}
}
