// A TLS client that is none of weft's: OpenSSL over a TCP connection, with a certificate or without one. It
// checks nothing of the server, and shows the server's reaction.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <weft/distributed/transport/address.h>

namespace weft::rpc {

/// Connects to an IPv4 address, shows the certificate if it is given, and begins HTTP/2.
class RawTls {
 public:
  RawTls(const HostPort& at, const std::string& certificate, const std::string& key)
      : context_(SSL_CTX_new(TLS_client_method())), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
    if (!certificate.empty()) {
      good_ = SSL_CTX_use_certificate_file(context_.get(), certificate.c_str(), SSL_FILETYPE_PEM) == 1 &&
              SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM) == 1;
    }
    const unsigned char http2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), http2, sizeof http2);
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(at.port);
    inet_pton(AF_INET, at.host.c_str(), &there.sin_addr);
    ssl_.reset(SSL_new(context_.get()));
    good_ = good_ && connect(fd_, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0 &&
            SSL_set_fd(ssl_.get(), fd_) == 1;
  }
  ~RawTls() {
    ssl_.reset();
    close(fd_);
  }
  RawTls(const RawTls&) = delete;

  /// True if its own certificate could be read and the server listens.
  bool is_ready() const { return good_; }
  /// True if the server sends a byte of HTTP/2, as it does once it has accepted the client.
  bool is_accepted() {
    if (SSL_connect(ssl_.get()) != 1) return false;
    const std::string begin("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
    if (SSL_write(ssl_.get(), begin.data(), static_cast<int>(begin.size())) <= 0) return false;
    char byte = 0;
    return SSL_read(ssl_.get(), &byte, 1) == 1;
  }

 private:
  struct Free {
    void operator()(SSL_CTX* c) const { SSL_CTX_free(c); }
    void operator()(SSL* s) const { SSL_free(s); }
  };
  const std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  const int fd_;
  bool good_ = true;
};

}  // namespace weft::rpc
