// The selective scan as one would write it in C++: the yardstick of the compiled kernel in `mabert bench ops`.
//
// A thread takes one vector of channels at a time through the whole sequence, with its states in a local array; all else
// is left to the compiler, which is asked for -O3 -march=native -ffast-math -fopenmp. The arithmetic is the kernel's: a
// polynomial exp2 instead of the mathematics library's, which was seen to halve the speed. Layout as in mabert.ops:
// u, delta, z, y (time, channel); A (channel, state); B, C (time, state); D, bias (channel).
#include <cmath>
#include <cstdint>
#include <cstring>

constexpr int LANES = 16;
constexpr float LOG2_E = 1.4426950408889634f;

static inline float exp2_(float x) {
    x = x < -126.0f ? -126.0f : x;
    const float whole = nearbyintf(x), r = x - whole;
    float p = 0.0013264727197433296f * r + 0.009671512639666487f;
    p = p * r + 0.05550733743251511f;
    p = p * r + 0.2402224208537476f;
    p = p * r + 0.6931469775991653f;
    p = p * r + 1.0f;
    const int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static inline float softplus(float x) {
    const float e = exp2_(-LOG2_E * fabsf(x)), s = e / (e + 2.0f), q = s * s;
    float p = 0.14005993406698658f * q + 0.14000902638766713f;
    p = p * q + 0.20010763619270924f;
    p = p * q + 0.33333208142840715f;
    p = p * q + 1.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * p;
}

template <int STATES>
static void scan(const float* u, const float* delta, const float* A, const float* B, const float* C, const float* D,
                 const float* z, const float* bias, float* y, long time, long channels) {
#pragma omp parallel for schedule(static)
    for (long first = 0; first < channels; first += LANES) {
        float decay[STATES][LANES], h[STATES][LANES];
        for (int n = 0; n < STATES; n++)
            for (int c = 0; c < LANES; c++) {
                decay[n][c] = A[(first + c) * STATES + n] * LOG2_E;
                h[n][c] = 0.0f;
            }
        for (long t = 0; t < time; t++) {
            const long at = t * channels + first;
            float step[LANES], x[LANES], out[LANES];
#pragma omp simd
            for (int c = 0; c < LANES; c++) {
                step[c] = softplus(delta[at + c] + bias[first + c]);
                x[c] = step[c] * u[at + c];
                out[c] = D[first + c] * u[at + c];
            }
            for (int n = 0; n < STATES; n++) {
                const float b = B[t * STATES + n], k = C[t * STATES + n];
#pragma omp simd
                for (int c = 0; c < LANES; c++) {
                    h[n][c] = exp2_(step[c] * decay[n][c]) * h[n][c] + x[c] * b;
                    out[c] += h[n][c] * k;
                }
            }
#pragma omp simd
            for (int c = 0; c < LANES; c++) y[at + c] = out[c] * z[at + c] / (1.0f + exp2_(-LOG2_E * z[at + c]));
        }
    }
}

// One entry for the one shape that is measured: 16 states, channels a multiple of LANES.
extern "C" void scan16(const float* u, const float* delta, const float* A, const float* B, const float* C,
                       const float* D, const float* z, const float* bias, float* y, long time, long channels) {
    scan<16>(u, delta, A, B, C, D, z, bias, y, time, channels);
}
