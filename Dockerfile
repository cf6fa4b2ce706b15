# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

# To build without access to public registries, set both images to a mirror, or the second to `scratch`, and GOPROXY to a module
# mirror. go.sum verifies the modules.
ARG GO_IMAGE=golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static:nonroot

# Cross-compiles on the build platform.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
# Empty means Go's default.
ARG GOPROXY
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unknown
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -buildvcs=false -trimpath -tags grpcnotrace,timetzdata -o /prebind \
    -ldflags "-s -w -X github.com/prebind/prebind/cmd/internal/cli.version=${VERSION}" ./cmd/prebind

FROM ${BASE_IMAGE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title=prebind \
      org.opencontainers.image.source=https://github.com/prebind/prebind \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION}
COPY --from=build /prebind /prebind
# A number, so that the kubelet can check runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/prebind"]
CMD ["serve"]
