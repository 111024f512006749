/* SHA-1 and SHA-256 through libcrypto's EVP interface. */
#include "files/checksum.h"

#include "files/file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct Crypto {
    void *(*ctx_new)(void);
    void (*ctx_free)(void *);
    const void *(*sha1)(void);
    const void *(*sha256)(void);
    int (*init)(void *, const void *, void *);
    int (*update)(void *, const void *, size_t);
    int (*final)(void *, unsigned char *, unsigned *);
} Crypto;

static Status open_crypto(Crypto *out)
{
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
    void                    *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void       *function;
    } symbols[] = {{"EVP_MD_CTX_new", &out->ctx_new},  {"EVP_MD_CTX_free", &out->ctx_free}, {"EVP_sha1", &out->sha1},
                   {"EVP_sha256", &out->sha256},       {"EVP_DigestInit_ex", &out->init},   {"EVP_DigestUpdate", &out->update},
                   {"EVP_DigestFinal_ex", &out->final}};
    bool all = library != NULL;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && all; i++) {
        void *found = dlsym(library, symbols[i].name);
        memcpy(symbols[i].function, &found, sizeof found);
        all = found != NULL;
    }
    FAIL_IF(!all, ERR_UNSUPPORTED, "checking downloads needs libcrypto (libcrypto.so.3), which isn't installed: apt-get install libssl3");
    return OK;
}

Status checksum_file(const char *path, ChecksumKind kind, char out_hex[CHECKSUM_TEXT])
{
    Crypto        crypto;
    FileMap       map;
    unsigned char digest[64];
    unsigned      bytes = 0;
    char          head[64];
    TRY(open_crypto(&crypto));
    TRY(file_map(path, &map));
    int   head_len = snprintf(head, sizeof head, "blob %zu", map.size) + 1; /* counting the NUL */
    bool  git = kind == CHECKSUM_GIT_BLOB;
    void *ctx = crypto.ctx_new();
    bool  ok = ctx && crypto.init(ctx, git ? crypto.sha1() : crypto.sha256(), NULL) &&
              (!git || crypto.update(ctx, head, (size_t)head_len)) && crypto.update(ctx, map.data, map.size) &&
              crypto.final(ctx, digest, &bytes) && 2 * bytes < CHECKSUM_TEXT;
    if (ctx) crypto.ctx_free(ctx);
    file_unmap(&map);
    FAIL_IF(!ok, ERR_UNSUPPORTED, "libcrypto offers no %s here", git ? "SHA-1" : "SHA-256");
    for (unsigned i = 0; i < bytes; i++) snprintf(out_hex + 2 * i, 3, "%02x", digest[i]);
    return OK;
}
