package aggregator

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// convert creates the OpenAPI v3 document of a backend that has only v2. As in
// kube-apiserver it includes the whole v2 document, and lacks what v2 cannot express.
func convert(swagger []byte, name string) (address string, serve http.HandlerFunc, err error) {
	var v2 spec.Swagger
	if err := json.Unmarshal(swagger, &v2); err != nil {
		return "", nil, fmt.Errorf("document of version 2: %w", err)
	}
	v3 := openapiconv.ConvertV2ToV3(&v2)
	text, err := json.Marshal(v3)
	if err != nil {
		return "", nil, err
	}
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(name, v3)
	at := url.URL{Path: "/openapi/v3/" + name, RawQuery: fmt.Sprintf("hash=%X", sha512.Sum512(text))}
	return at.String(), service.HandleGroupVersion, nil
}
