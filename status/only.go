package status

import (
	"cmp"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only reports whether the client takes the one format that a document has; a client
// that does not is told so. It must name that format, or take everything.
func Only(w http.ResponseWriter, r *http.Request, media string) bool {
	for clause := range strings.SplitSeq(cmp.Or(r.Header.Get("Accept"), "*/*"), ",") {
		kind, _, _ := strings.Cut(clause, ";")
		if kind = strings.TrimSpace(kind); kind == media || kind == "*/*" {
			return true
		}
	}
	Write(w, r, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
		"406: Not Acceptable\n\nAvailable representations: "+media, 0, false).ErrStatus)
	return false
}
