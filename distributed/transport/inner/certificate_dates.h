// The dates of a certificate, so that a refusal can name them. gRPC checks certificates and reports only that
// a check failed. To the side whose certificate was refused it reports nothing. This needs no header of
// OpenSSL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// From when until when a certificate is valid, in seconds since 1970.
struct CertificateDates {
  int64_t begin = 0, end = 0;
};

/// The dates of the first certificate in a text in PEM form; none if it cannot be read.
WEFT_API std::optional<CertificateDates> dates_of(std::string_view pem);

/// "expired at 2026-01-31 12:00:00 UTC" or "is not valid before ...". Empty for a certificate that is valid
/// at that time, or whose dates cannot be read.
WEFT_API std::string why_out_of_date(std::string_view pem, int64_t now);

}  // namespace weft::rpc::inner
