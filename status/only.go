package status

import (
	"cmp"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only reports whether the client accepts media, the one format of a document, and
// answers 406 if it does not. The Accept header must name the format or be */*.
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
