// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// typed returns a client for objects of Go types. A watch decodes only the metadata of those that leave it: every bind makes a pod leave the
// pending pods, and decoding it is the largest part of the work of following them. The client of controller-runtime has no option for the
// decoder.
func (s *Source) typed(version schema.GroupVersion) (rest.Interface, error) {
	own := rest.CopyConfig(s.Config)
	own.APIPath, own.GroupVersion = "/apis", &version
	if version.Group == "" {
		own.APIPath = "/api"
	}
	if clientgoscheme.Scheme.IsVersionRegistered(version) { // As in the client of controller-runtime: other APIs can lack protobuf.
		own.ContentType = runtime.ContentTypeProtobuf
	}
	own.NegotiatedSerializer = briefSerializer{serializer.NewCodecFactory(s.Scheme).WithoutConversion()}
	return rest.RESTClientForConfigAndClient(own, s.HTTP)
}

// briefSerializer decodes only the metadata of objects that a watch in protobuf reports as deleted.
type briefSerializer struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s briefSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if stream := all[i].StreamSerializer; stream != nil {
			brief := *stream
			brief.Serializer = briefEvents{stream.Serializer}
			all[i].StreamSerializer = &brief
		}
	}
	return all
}

type briefEvents struct{ runtime.Serializer }

// Decode implements runtime.Decoder. It leaves the object of the event encoded.
func (e briefEvents) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, kind, err := e.Serializer.Decode(data, defaults, into)
	if event, ok := o.(*metav1.WatchEvent); ok && event.Type == string(watch.Deleted) {
		event.Object.Raw = metadataOnly(event.Object.Raw)
	}
	return o, kind, err
}

// envelope encodes and decodes the envelope of an object in protobuf.
var envelope = protobuf.NewSerializer(nil, nil)

// metadataOnly returns the object in protobuf with its first field only, if that is its metadata. It returns others as they are.
func metadataOnly(raw []byte) []byte {
	var object runtime.Unknown
	if _, _, err := envelope.Decode(raw, nil, &object); err != nil {
		return raw
	}
	field, _, length := protowire.ConsumeField(object.Raw)
	if field != 1 {
		return raw
	}
	object.Raw = object.Raw[:length]
	if brief, err := runtime.Encode(envelope, &object); err == nil {
		return brief
	}
	return raw
}
