// Package measure lets packages record metrics without importing package metrics. Start
// at Sink and Series.
package measure

import "time"

// Sink provides series.
type Sink interface {
	// Series returns the series of a metric with these label values. The series is
	// created with the first observation, so it can be requested in advance.
	Series(metric string, labels ...string) Series
}

// Forgetter is a Sink that can remove the series of a gauge with this value of a label.
type Forgetter interface {
	Forget(metric, label, value string)
}

// Series records a value: a histogram or gauge takes the value, a counter adds it.
type Series = interface{ Observe(value float64) }

// SeriesOf returns a series of a sink; if the sink is nil, one that drops everything.
func SeriesOf(to Sink, metric string, labels ...string) Series {
	if to == nil {
		return discarded{}
	}
	return to.Series(metric, labels...)
}

// Count adds one to a counter.
func Count(to Sink, metric string, labels ...string) { SeriesOf(to, metric, labels...).Observe(1) }

// Since records the seconds since a time.
func Since(to Sink, began time.Time, metric string, labels ...string) {
	if to != nil {
		to.Series(metric, labels...).Observe(time.Since(began).Seconds())
	}
}

type discarded struct{}

// Observe implements Series.
func (discarded) Observe(float64) {}

// Names of the metrics, with their labels in the comments; package metrics has their
// definitions.
const (

	// FlowWait: priority_level, flow_schema, execute.
	FlowWait = "apiserver_flowcontrol_request_wait_duration_seconds"
	// FlowExecution: priority_level, flow_schema, type.
	FlowExecution = "apiserver_flowcontrol_request_execution_seconds"
	// FlowSeats, FlowQueue, FlowWatches: priority_level, flow_schema.
	FlowSeats   = "apiserver_flowcontrol_work_estimated_seats"
	FlowQueue   = "apiserver_flowcontrol_request_queue_length_after_enqueue"
	FlowWatches = "apiserver_flowcontrol_watch_count_samples"

	// CacheLoadDuration, CacheReadWait: group, resource.
	CacheLoadDuration = "apiserver_watch_cache_initialization_duration_seconds"
	CacheReadWait     = "apiserver_watch_cache_read_wait_seconds"

	// AuthorizationDecisions: type, name, decision.
	AuthorizationDecisions = "apiserver_authorization_decisions_total"
	// NodeGraphDuration: operation.
	NodeGraphDuration = "node_authorizer_graph_actions_duration_seconds"

	// TokenCacheRequests, TokenCacheDuration, TokenCacheFetches: status.
	TokenCacheRequests = "authentication_token_cache_request_total"
	TokenCacheDuration = "authentication_token_cache_request_duration_seconds"
	TokenCacheFetches  = "authentication_token_cache_fetch_total"
	// TokenCacheActive, which is set: status.
	TokenCacheActive = "authentication_token_cache_active_fetch_count"
	// JWTLatency, of providers that are configured: result, jwt_issuer_hash. KeysFetched is
	// when the keys of one were last fetched: result, jwt_issuer_hash, apiserver_id_hash.
	// KeysInfo tells which they are: jwt_issuer_hash, apiserver_id_hash, hash.
	JWTLatency  = "apiserver_authentication_jwt_authenticator_latency_seconds"
	KeysFetched = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds"
	KeysInfo    = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info"
	// Tokens of service accounts: without labels.
	LegacyTokens        = "serviceaccount_legacy_tokens_total"
	LegacyAutoTokens    = "serviceaccount_legacy_auto_token_uses_total"
	LegacyManualTokens  = "serviceaccount_legacy_manual_token_uses_total"
	InvalidLegacyTokens = "serviceaccount_invalid_legacy_auto_token_uses_total"
	StaleTokens         = "serviceaccount_stale_tokens_total"
	ValidTokens         = "serviceaccount_valid_tokens_total"
	// SignerKeysFetched, when keys of the external signer were last fetched, and
	// SignerKeysChanged, when it last changed them: without labels.
	SignerKeysFetched = "apiserver_externaljwt_fetch_keys_success_timestamp"
	SignerKeysChanged = "apiserver_externaljwt_fetch_keys_data_timestamp"
	// SignerFetches, SignerSignatures: code. SignerDuration: method, code.
	SignerFetches    = "apiserver_externaljwt_fetch_keys_request_total"
	SignerSignatures = "apiserver_externaljwt_sign_request_total"
	SignerDuration   = "apiserver_externaljwt_request_duration_seconds"

	// Encryption of what is stored. Transformations: resource, transformation_type,
	// transformer_prefix, status. TransformationDuration: transformation_type,
	// transformer_prefix.
	Transformations        = "apiserver_storage_transformation_operations_total"
	TransformationDuration = "apiserver_storage_transformation_duration_seconds"
	// DataKeyDuration, DataKeyFailures, DataKeyMisses: without labels.
	DataKeyDuration = "apiserver_storage_data_key_generation_duration_seconds"
	DataKeyFailures = "apiserver_storage_data_key_generation_failures_total"
	DataKeyMisses   = "apiserver_storage_envelope_transformation_cache_misses_total"
	// KMSDuration: provider_name, method_name, grpc_status_code.
	KMSDuration = "apiserver_envelope_encryption_kms_operations_latency_seconds"
	// KMSKeyUses, and when the last was: transformation_type, provider_name,
	// key_id_hash, apiserver_id_hash.
	KMSKeyUses    = "apiserver_envelope_encryption_key_id_hash_total"
	KMSKeyLastUse = "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds"
	// KMSKeyLastStatus: provider_name, key_id_hash, apiserver_id_hash.
	KMSKeyLastStatus = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds"
	// KMSInvalidKeys: provider_name, error.
	KMSInvalidKeys = "apiserver_envelope_encryption_invalid_key_id_from_status_total"
	// KMSSources, which is set: provider_name.
	KMSSources = "apiserver_envelope_encryption_dek_source_cache_size"
	// KMSCacheFill, which is set, of KMS v1: without labels.
	KMSCacheFill = "apiserver_envelope_encryption_dek_cache_fill_percent"

	// CELCompilation, CELEvaluation: without labels.
	CELCompilation = "apiserver_cel_compilation_duration_seconds"
	CELEvaluation  = "apiserver_cel_evaluation_duration_seconds"
	// CSRDurationsRequested, CSRDurationsHonored: signerName.
	CSRDurationsRequested = "apiserver_certificates_registry_csr_requested_duration_total"
	CSRDurationsHonored   = "apiserver_certificates_registry_csr_honored_duration_total"
	// PodLogs: usage. PodLogTLSFailures: without labels.
	PodLogs           = "kube_apiserver_pod_logs_insecure_backend_total"
	PodLogTLSFailures = "kube_apiserver_pod_logs_backend_tls_failure_total"
	// WebhookNoNames, WebhookSHA1, AggregatorNoNames, AggregatorSHA1: without
	// labels.
	WebhookNoNames    = "apiserver_webhooks_x509_missing_san_total"
	WebhookSHA1       = "apiserver_webhooks_x509_insecure_sha1_total"
	AggregatorNoNames = "apiserver_kube_aggregator_x509_missing_san_total"
	AggregatorSHA1    = "apiserver_kube_aggregator_x509_insecure_sha1_total"
	// PeerRequests: code, group, version, resource. PeerProxyErrors: type, group, version,
	// resource. PeerDiscoveryErrors: type.
	PeerRequests        = "apiserver_rerouted_request_total"
	PeerProxyErrors     = "apiserver_peer_proxy_errors_total"
	PeerDiscoveryErrors = "apiserver_peer_discovery_sync_errors_total"
	// DiscoveryPeerHits, DiscoveryPeerMisses, DiscoveryNoPeer: without labels.
	DiscoveryPeerHits   = "aggregator_discovery_peer_aggregated_cache_hits_total"
	DiscoveryPeerMisses = "aggregator_discovery_peer_aggregated_cache_misses_total"
	DiscoveryNoPeer     = "aggregator_discovery_nopeer_requests_total"
	// DialStarts, DialDuration: protocol, transport. DialFailures: protocol,
	// transport, stage.
	DialStarts   = "apiserver_egress_dialer_dial_start_total"
	DialDuration = "apiserver_egress_dialer_dial_duration_seconds"
	DialFailures = "apiserver_egress_dialer_dial_failure_count"
	// ConversionRequests, ConversionDuration: result, failure_type.
	ConversionRequests = "apiserver_conversion_webhook_request_total"
	ConversionDuration = "apiserver_conversion_webhook_duration_seconds"
	// CRDConversionDuration: crd_name, from_version, to_version, succeeded.
	CRDConversionDuration = "apiserver_crd_conversion_webhook_duration_seconds"

	// PodSecurityEvaluations: decision, policy_level, policy_version, mode,
	// request_operation, resource, subresource.
	PodSecurityEvaluations = "pod_security_evaluations_total"
	// PodSecurityExemptions: request_operation, resource, subresource.
	PodSecurityExemptions = "pod_security_exemptions_total"
	// PodSecurityErrors: fatal, request_operation, resource, subresource.
	PodSecurityErrors = "pod_security_errors_total"

	// Addresses of services. IPAllocationDuration: cidr. IPAllocations,
	// IPAllocationErrors: cidr, scope.
	IPAllocationDuration = "kube_apiserver_clusterip_allocator_allocation_duration_seconds"
	IPAllocations        = "kube_apiserver_clusterip_allocator_allocation_total"
	IPAllocationErrors   = "kube_apiserver_clusterip_allocator_allocation_errors_total"
	// ServiceRepairErrors: without labels.
	ServiceRepairErrors = "apiserver_nodeport_repair_reconcile_errors_total"
	// Ports of services: scope.
	PortAllocations      = "kube_apiserver_nodeport_allocator_allocation_total"
	PortAllocationErrors = "kube_apiserver_nodeport_allocator_allocation_errors_total"
)
