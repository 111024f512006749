/* Messages between the processes of a run. Every message has a fixed size and is checked before it is used. Numbers are in x86-64's byte
 * order and layout, as all ranks run the same program. */
#pragma once

#include "base/sha256.h"
#include "comm/pulse.h"

enum { CHANNEL_CONTROL, CHANNEL_DATA, CHANNEL_COUNT };
enum { WIRE_NONCE = 32 };
#define WIRE_MAGIC "surogat1"

/* Messages of the meeting, from a guest (->) and from rank 0 (<-): Hello ->, <- Challenge, Proof ->, <- Verdict. On the control channel
 * a second Verdict follows when all ranks are there. */
typedef struct WireHello {
    char     magic[8];
    int32_t  rank, world_size, channel, zero;
    uint64_t agreed;
    uint8_t  nonce[WIRE_NONCE];
} WireHello;

typedef struct WireChallenge {
    char    magic[8];
    uint8_t nonce[WIRE_NONCE];
} WireChallenge;

typedef struct WireProof {
    uint8_t mac[SHA256_BYTES]; /* keyed with the secret, over hello and challenge */
} WireProof;

typedef struct WireVerdict {
    char    magic[8];
    int32_t status; /* OK: the guest is welcome (first verdict), or all ranks are there (second) */
    int32_t zero;
    char    why[512];
    uint8_t mac[SHA256_BYTES]; /* keyed with the secret, over hello, challenge and the fields above */
} WireVerdict;

/* Messages of the control channel, after the meeting. */
typedef enum WireKind { WIRE_BEAT, WIRE_END, WIRE_BYE, WIRE_KIND_COUNT } WireKind;

typedef struct WireControl {
    char    magic[8];
    int32_t kind, rank, cause, waits;
    double  silence, longest;
    char    phase[PULSE_NAME];
    char    why[1024];
} WireControl;

/* The data channel: a rank sends its call to rank 0, then its data. Rank 0 answers with one byte, then the result. */
typedef struct WireCall {
    char    magic[8];
    int32_t kind, root, dtype, reduce;
    int64_t count;
} WireCall;

/* False if this program wouldn't send such a message. Texts in *out are NUL-terminated. */
bool wire_hello_read(const void *bytes, WireHello *out);
bool wire_verdict_read(const void *bytes, WireVerdict *out);
bool wire_control_read(const void *bytes, WireControl *out);
bool wire_call_read(const void *bytes, CommCall *out);
void wire_call_write(const CommCall *call, WireCall *out);

typedef enum WireSide { WIRE_CLIENT, WIRE_SERVER } WireSide;
/* Computes the MAC of a proof (verdict NULL), or of a verdict. */
void wire_mac(const char *secret, WireSide side, const WireHello *hello, const WireChallenge *challenge, const WireVerdict *verdict,
              uint8_t out[SHA256_BYTES]);
