// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInvalidParameters(t *testing.T) {
	var all []*Error
	for i := range 7 {
		p := Parameter{Annotation: "a.prebind.dev/" + strconv.Itoa(i), On: Object{Kind: "Pod", Namespace: "default", Name: "web"}}
		all = append(all, p.Invalid("must be %d", i))
	}
	assert.EqualError(t, InvalidParameters(all[:1]), "Pod default/web: annotation a.prebind.dev/0 must be 0; correct the annotation")
	joined := InvalidParameters(all)
	assert.EqualError(t, joined, "Pod default/web: annotation a.prebind.dev/0 must be 0; annotation a.prebind.dev/1 must be 1; "+
		"annotation a.prebind.dev/2 must be 2; annotation a.prebind.dev/3 must be 3; annotation a.prebind.dev/4 must be 4; and 2 more; correct the annotation")
	assert.Len(t, joined.Fields, 5)
	assert.Equal(t, Field{Path: "metadata.annotations[a.prebind.dev/4]", Message: "must be 4"}, joined.Fields[4])
	assert.Equal(t, KindInvalid, joined.Kind)
	assert.Len(t, all[0].Fields, 1, "the errors do not change")
}
