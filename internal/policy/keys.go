// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// ownDomain is the domain of Prebind's keys, and policyDomain that of the policies' own keys.
const (
	ownDomain    = "prebind.dev"
	policyDomain = "policy." + ownDomain
)

// reserved are the domains whose keys policies must not set, except for their own.
var reserved = []string{"kubernetes.io", "k8s.io", ownDomain}

// OwnKey returns the complete key of a policy's own annotation.
func OwnKey(policy, key string) string { return policy + "." + policyDomain + "/" + key }

// keyOf returns the complete key of an annotation or label, or the reason why the policy must not set it. A key
// without a slash becomes <policy>.policy.prebind.dev/<key>.
//
// An allowed prefix is a domain, such as ray.io. It does not include subdomains. An allowed prefix that begins with
// "*." includes all subdomains of the domain, but not the domain. Prefixes of kubernetes.io, k8s.io and
// prebind.dev are never allowed, except for the policy's own.
func keyOf(policy, key string, allowed []string) (string, *Problem) {
	prefix, name, found := strings.Cut(key, "/")
	own := policy + "." + policyDomain
	if !found {
		prefix, name = own, key
	}
	complete := prefix + "/" + name
	if errs := content.IsLabelKey(complete); len(errs) > 0 {
		return "", &Problem{Reason: v1alpha1.ReasonCompileError, Message: fmt.Sprintf("invalid key %q: %s", complete, strings.Join(errs, "; "))}
	}
	switch {
	case prefix == own:
		return complete, nil
	case slices.ContainsFunc(reserved, func(domain string) bool { return within(domain, prefix) }):
		return "", &Problem{Reason: v1alpha1.ReasonKeyNotAllowed, Message: fmt.Sprintf("keys with the prefix %s are reserved; use a key without a prefix", prefix)}
	case slices.ContainsFunc(allowed, func(p string) bool { return allows(p, prefix) }):
		return complete, nil
	}
	return "", &Problem{Reason: v1alpha1.ReasonKeyNotAllowed, Message: fmt.Sprintf(
		"keys with the prefix %s are not allowed; use a key without a prefix, or add %s to keyPrefixes (--policy-key-prefixes)", prefix, prefix)}
}

// within returns whether the name is the domain or a subdomain.
func within(domain, name string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

// allows returns whether an allowed prefix includes the prefix of a key.
func allows(allowed, prefix string) bool {
	if domain, ok := strings.CutPrefix(allowed, "*."); ok {
		return domain != "" && strings.HasSuffix(prefix, "."+domain)
	}
	return allowed == prefix
}

// ValidateKeyPrefix returns the reason why Options.KeyPrefixes must not contain the prefix, or an empty text.
func ValidateKeyPrefix(prefix string) string {
	domain := strings.TrimPrefix(prefix, "*.")
	if errs := validation.IsDNS1123Subdomain(domain); len(errs) > 0 {
		return strings.Join(errs, "; ")
	}
	for _, r := range reserved {
		if within(r, domain) {
			return "keys of " + r + " are never allowed"
		}
	}
	return ""
}
