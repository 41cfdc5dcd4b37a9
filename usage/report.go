package usage

import "time"

// Report is what an operator should know about the use of the API.
type Report struct {
	// Since is when the server began to look.
	Since time.Time `json:"since"`
	// Deprecated are requests for deprecated versions, Unpaged large lists without
	// pages, and Restarted watches that were begun again and again.
	Deprecated []Finding `json:"deprecated"`
	Unpaged    []Finding `json:"unpagedLists"`
	Restarted  []Finding `json:"restartedWatches"`
	// Webhooks are admission webhooks, those first that take the most time.
	Webhooks []Webhook `json:"webhooks"`
	// Unused are the names of CustomResourceDefinitions that nobody has used.
	Unused []string `json:"unusedDefinitions"`
	// Kinds are the largest resources in a namespace, Objects the largest objects, both
	// of what is in memory.
	Kinds   []Size `json:"largestKinds"`
	Objects []Size `json:"largestObjects"`
}

// Webhook is what an admission webhook costs.
type Webhook struct {
	Name string `json:"name"`
	// Type is admit for a mutating webhook, or validating.
	Type         string  `json:"type"`
	Requests     int64   `json:"requests"`
	TotalSeconds float64 `json:"totalSeconds"`
	MeanSeconds  float64 `json:"meanSeconds"`
	// Rejected are the requests that it refused, Failed those for which it gave no valid
	// answer; FailedOpen of these were let through.
	Rejected   int64 `json:"rejected"`
	Failed     int64 `json:"failed"`
	FailedOpen int64 `json:"failedOpen"`
}

// Size is how large an object is, or all objects of a resource in a namespace.
type Size struct {
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Objects   int64  `json:"objects,omitempty"`
	Bytes     int64  `json:"bytes"`
}

// Report returns what is known here: findings.
func (m *Meter) Report(may Viewer) *Report {
	return &Report{
		Since: m.began, Deprecated: m.Findings(DeprecatedVersion, may), Unpaged: m.Findings(UnpagedList, may), Restarted: m.Findings(RestartedWatch, may),
		Webhooks: []Webhook{}, Unused: []string{}, Kinds: []Size{}, Objects: []Size{},
	}
}
