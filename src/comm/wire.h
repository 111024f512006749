/* What processes of a run send each other. Every message has a fixed size, and what it says is checked before it is used. Numbers lie
 * there as x86-64 has them in memory: all ranks run this program. */
#pragma once

#include "base/sha256.h"
#include "comm/pulse.h"

enum { CHANNEL_CONTROL, CHANNEL_DATA, CHANNEL_COUNT };
enum { WIRE_NONCE = 32 };
#define WIRE_MAGIC "surogat1"

/* Meeting: Hello ->, <- Challenge, Proof ->, <- Verdict; and on the control channel a second Verdict when all are there. */
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
    uint8_t mac[SHA256_BYTES]; /* of the secret, over hello and challenge */
} WireProof;

typedef struct WireVerdict {
    char    magic[8];
    int32_t status; /* OK: welcome, or all are there */
    int32_t zero;
    char    why[512];
    uint8_t mac[SHA256_BYTES]; /* of the secret, over hello, challenge and what is above */
} WireVerdict;

/* The control channel, after the meeting. */
typedef enum WireKind { WIRE_BEAT, WIRE_END, WIRE_BYE, WIRE_KIND_COUNT } WireKind;

typedef struct WireControl {
    char    magic[8];
    int32_t kind, rank, cause, waits;
    double  silence, longest;
    char    phase[PULSE_NAME];
    char    why[1024];
} WireControl;

/* The data channel: what a rank asks rank 0 for; then its data. Rank 0 answers with a byte and the result. */
typedef struct WireCall {
    char    magic[8];
    int32_t kind, root, dtype, reduce;
    int64_t count;
} WireCall;

/* False for a message that this program doesn't send. Texts end within their room afterwards. */
bool wire_hello_read(const void *bytes, WireHello *out);
bool wire_verdict_read(const void *bytes, WireVerdict *out);
bool wire_control_read(const void *bytes, WireControl *out);
bool wire_call_read(const void *bytes, CommCall *out);
void wire_call_write(const CommCall *call, WireCall *out);

typedef enum WireSide { WIRE_CLIENT, WIRE_SERVER } WireSide;
/* The MAC of a proof (verdict NULL), or of a verdict. */
void wire_mac(const char *secret, WireSide side, const WireHello *hello, const WireChallenge *challenge, const WireVerdict *verdict,
              uint8_t out[SHA256_BYTES]);
