// Keys and certificates by OpenSSL (certificates.h).
#include "weft-certs/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <weft/distributed/wire/worker_info.h>

namespace weft_certs {
namespace {

using weft::str;

template <class T, void (*Free)(T*)> struct Freed {
  void operator()(T* p) const { Free(p); }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using File = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

/// Throws the last error of OpenSSL unless `good`.
void need(bool good, const char* step) {
  if (good) return;
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  throw weft::Error(str("weft-certs: ", step, ": ", text));
}

Key make_key() {
  Key key(EVP_EC_gen("P-256"));
  need(key != nullptr, "making a key");
  return key;
}

void add_extension(X509& certificate, X509& issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION, X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  need(extension != nullptr && X509_add_ext(&certificate, extension.get(), -1) == 1, value.c_str());
}

/// A certificate without its signature. `issuer` null: its own. `begin`, `end`: days from now.
Certificate begin_certificate(const std::string& name, EVP_PKEY& key, X509* issuer, int begin, int end) {
  Certificate made(X509_new());
  need(made != nullptr && X509_set_version(made.get(), 2) == 1, "making a certificate");
  unsigned char serial[16];
  need(RAND_bytes(serial, sizeof serial) == 1, "drawing a serial number");
  serial[0] &= 0x7f;  // positive
  std::unique_ptr<BIGNUM, Freed<BIGNUM, BN_free>> number(BN_bin2bn(serial, sizeof serial, nullptr));
  need(number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) != nullptr,
       "setting the serial number");
  X509_time_adj_ex(X509_getm_notBefore(made.get()), begin, -300, nullptr);  // clocks of a group may differ
  X509_time_adj_ex(X509_getm_notAfter(made.get()), end, 0, nullptr);
  const auto* text = reinterpret_cast<const unsigned char*>(name.data());
  X509_NAME* subject = X509_get_subject_name(made.get());
  // a common name has at most 64 bytes; the alternative name counts
  need(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, text,
                                  static_cast<int>(std::min<size_t>(name.size(), 64)), -1, 0) == 1,
       "setting the subject");
  X509_set_issuer_name(made.get(), issuer != nullptr ? X509_get_subject_name(issuer) : subject);
  need(X509_set_pubkey(made.get(), &key) == 1, "setting the key");
  return made;
}

void sign(X509& certificate, EVP_PKEY& key) {
  need(X509_sign(&certificate, &key, EVP_sha256()) > 0, "signing a certificate");
}

std::string text_of(BIO& bio) {
  char* data = nullptr;
  const auto n = BIO_get_mem_data(&bio, &data);
  return std::string(data, static_cast<size_t>(n));
}
std::string to_pem(X509& certificate) {
  const File out(BIO_new(BIO_s_mem()));
  need(out != nullptr && PEM_write_bio_X509(out.get(), &certificate) == 1, "writing a certificate");
  return text_of(*out);
}
std::string to_pem(EVP_PKEY& key) {
  const File out(BIO_new(BIO_s_mem()));
  need(out != nullptr &&
           PEM_write_bio_PKCS8PrivateKey(out.get(), &key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
       "writing a key");
  return text_of(*out);
}

/// Writes a file that appears whole, with mode 0600. Throws: IoError.
void write_file(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  unlink(draft.c_str());
  const int file = open(draft.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) throw weft::IoError(str("cannot write ", draft, ": ", std::strerror(errno)));
  const bool whole =
      write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(file) == 0;
  const bool closed = close(file) == 0;
  if (!whole || !closed || rename(draft.c_str(), path.c_str()) != 0)
    throw weft::IoError(str("cannot write ", path, ": ", std::strerror(errno)));
}

void make_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw weft::IoError(str("cannot make the folder ", folder, ": ", std::strerror(errno)));
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    throw weft::IoError(str(folder, " is not a folder"));
  if ((info.st_mode & 0022) != 0) throw weft::IoError(str("others can write to the folder ", folder));
}

/// The alternative names as OpenSSL reads them.
std::string alternative_names(const std::string& worker, const std::vector<std::string>& hosts) {
  std::string all = "DNS:" + worker;
  for (const std::string& host : hosts) {
    unsigned char bytes[16];
    const bool address =
        inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
    if (!address && (host.empty() || host.find_first_not_of("abcdefghijklmnopqrstuvwxyz"
                                                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                            "0123456789-._") != std::string::npos))
      throw weft::ValueError(str("'", host, "' is neither a host name nor an IP address"));
    all += (address ? ",IP:" : ",DNS:") + host;
  }
  return all;
}

struct Authority {
  Key key;
  Certificate certificate;
};

/// The authority of the folder, made when it is missing.
Authority open_authority(const std::string& folder, int days) {
  const std::string pem = folder + "/ca.pem", key = folder + "/ca.key";
  Authority made;
  const bool has_pem = access(pem.c_str(), F_OK) == 0, has_key = access(key.c_str(), F_OK) == 0;
  if (has_pem != has_key)
    throw weft::IoError(str("the folder ", folder, " has only ", has_pem ? "ca.pem" : "ca.key",
                            " of an authority: remove it, or bring the other file"));
  if (has_pem) {
    const File pem_file(BIO_new_file(pem.c_str(), "r")), key_file(BIO_new_file(key.c_str(), "r"));
    need(pem_file != nullptr && key_file != nullptr, "opening the authority's files");
    made.certificate.reset(PEM_read_bio_X509(pem_file.get(), nullptr, nullptr, nullptr));
    made.key.reset(PEM_read_bio_PrivateKey(key_file.get(), nullptr, nullptr, nullptr));
    need(made.certificate != nullptr && made.key != nullptr, "reading the authority's files");
    need(X509_check_private_key(made.certificate.get(), made.key.get()) == 1, "comparing ca.pem and ca.key");
    return made;
  }
  made.key = make_key();
  made.certificate = begin_certificate("weft group", *made.key, nullptr, 0, days);
  X509& ca = *made.certificate;
  add_extension(ca, ca, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(ca, ca, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(ca, ca, NID_subject_key_identifier, "hash");
  sign(ca, *made.key);
  write_file(key, to_pem(*made.key));
  write_file(pem, to_pem(ca));
  return made;
}

}  // namespace

void write_certificates(const Request& request) {
  if (request.days < 1 || request.days > 3650)
    throw weft::ValueError(str("the days of a certificate are 1 to 3650, not ", request.days));
  if (request.workers.empty()) throw weft::ValueError("no worker is named");
  for (const std::string& worker : request.workers) {
    weft::rpc::check_worker_name(worker);
    alternative_names(worker, request.hosts);
    if (worker == "ca") throw weft::ValueError("the name 'ca' is the authority's file");
  }
  make_folder(request.folder);
  const Authority authority = open_authority(request.folder, request.days);
  X509& ca = *authority.certificate;
  for (const std::string& worker : request.workers) {
    const Key key = make_key();
    const Certificate made =
        begin_certificate(worker, *key, &ca, request.begin, request.begin + request.days);
    add_extension(*made, ca, NID_basic_constraints, "critical,CA:FALSE");
    add_extension(*made, ca, NID_key_usage, "critical,digitalSignature");
    add_extension(*made, ca, NID_ext_key_usage, "serverAuth,clientAuth");
    add_extension(*made, ca, NID_subject_alt_name, alternative_names(worker, request.hosts));
    sign(*made, *authority.key);
    write_file(request.folder + "/" + worker + ".key", to_pem(*key));
    write_file(request.folder + "/" + worker + ".pem", to_pem(*made));
  }
}

}  // namespace weft_certs
