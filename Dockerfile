# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

# Both bases can be replaced, by a mirror or by `scratch` for the second: the binary is static and brings all it needs. With
# GOPROXY at a mirror as well, nothing outside is asked: go.sum says what the modules must be.
ARG GO_IMAGE=golang:1.26
ARG BASE_IMAGE=gcr.io/distroless/static:nonroot

# Compiles on the builder's own platform for the target's.
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
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -tags grpcnotrace -o /prebind \
    -ldflags "-s -w -X github.com/prebind/prebind/cmd/prebind/app.version=${VERSION}" ./cmd/prebind

FROM ${BASE_IMAGE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title=prebind \
      org.opencontainers.image.source=https://github.com/prebind/prebind \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION}
COPY --from=build /prebind /prebind
# By number, so that the kubelet can check runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/prebind"]
CMD ["serve"]
