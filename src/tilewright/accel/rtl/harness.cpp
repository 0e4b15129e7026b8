// The RTL behind the driver: registers by AXI4-Lite, memory by AXI4 with a latency. Compiled together
// with what Verilator makes of the modules.
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "Vvta_top.h"
#include "accel/accel.h"
#include "verilated.h"

namespace {

constexpr uint64_t kStream = UINT64_C(1) << 40;  // where instructions lie
constexpr int64_t kNever = INT64_C(1) << 62;

// Cycles from a request to its first data: as accel/cycle.py has them.
class Delay {
 public:
  Delay(int64_t latency, int64_t seed, int64_t more)
      : latency_(latency), left_(seed < -1 ? -2 - seed : -1), is_random_(seed >= 0) {
    state_ = static_cast<uint32_t>(static_cast<uint64_t>(seed + more) * UINT64_C(0x9E3779B1) +
                                   0x7F4A7C15u);
    if (state_ == 0) state_ = 1;
  }
  int64_t next() {
    if (left_ == 0) return kNever / 2;  // this memory answers no more
    if (left_ > 0) --left_;
    if (!is_random_) return latency_;
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return latency_ + state_ % (latency_ + 1);
  }

 private:
  int64_t latency_, left_;
  bool is_random_;
  uint32_t state_;
};

// Flags of a seed: handshakes that wait at random, and a request that memory refuses.
class Faults {
 public:
  explicit Faults(int64_t seed)
      : holds_(seed >= 0 && seed & TW_ACCEL_BACK_PRESSURE),
        refused_(seed >= 0 && seed & TW_ACCEL_BUS_ERROR ? static_cast<uint32_t>(seed) : -1),
        state_(static_cast<uint32_t>(seed)) {}
  // Whether a channel goes on in this cycle.
  bool goes() {
    state_ = state_ * 1664525u + 1013904223u;
    return !holds_ || state_ >> 30 != 0;
  }
  // The answer to the next request.
  uint8_t response() { return requests_++ == refused_ ? 2 : 0; }

 private:
  bool holds_;
  int64_t refused_, requests_ = 0;
  uint32_t state_;
};

struct Burst {
  uint64_t address;
  int64_t beats, ready;
  uint8_t response;
};

// A port of the model as bytes, whatever type Verilator gave it.
template <typename Port>
uint8_t *bytes_of(Port &port) {
  return reinterpret_cast<uint8_t *>(&port);
}

class Machine {
 public:
  explicit Machine(const tw_accel_config &config)
      : config_(config), context_(new VerilatedContext) {
    static int opened = 0;
    context_->randReset(2);
    context_->randSeed(++opened);
    top_.reset(new Vvta_top(context_.get()));
    top_->resetn = 0;
    top_->s_awvalid = top_->s_wvalid = top_->s_arvalid = top_->s_bready = top_->s_rready = 0;
    top_->m_arready = top_->m_awready = top_->m_wready = top_->m_rvalid = top_->m_bvalid = 0;
    for (int i = 0; i < 8; ++i) clock();
    top_->resetn = 1;
    clock();
  }
  ~Machine() {
    /* Scopes leave the thread's context, which may be that of a machine that is closed already. */
    Verilated::threadContextp(context_.get());
    top_->final();
  }

  void run(tw_accel_job *job) {
    job_ = job;
    reads_.clear();
    writes_.clear();
    answers_.clear();
    now_ = -1;
    faults_ = Faults(job->seed);
    top_->m_rvalid = top_->m_bvalid = 0;
    Delay reads(config_.latency_cycles, job->seed, 0), writes(config_.latency_cycles, job->seed, 1);
    list_tasks();
    set(0x00, 2);
    set(0x0C, static_cast<uint32_t>(job->timeout_cycles > UINT32_MAX ? UINT32_MAX
                                                                      : job->timeout_cycles));
    set64(0x10, kStream);
    set(0x18, static_cast<uint32_t>(job->tasks));
    set(0x1C, static_cast<uint32_t>(job->buffers));
    for (int i = 0; i < job->buffers; ++i) {
      const tw_accel_buffer &b = job->buffer[i];
      set64(0x100 + 16 * i, b.address);
      set64(0x108 + 16 * i,
            static_cast<uint64_t>(b.bytes) | static_cast<uint64_t>(b.is_writable) << 63);
    }
    set(0x00, 1);
    while (!top_->irq && now_ < kNever) cycle(reads, writes);
    collect();
  }

 private:
  void clock() {
    top_->clk = 0;
    top_->eval();
    top_->clk = 1;
    top_->eval();
  }

  void set(uint32_t address, uint32_t value) {
    top_->s_awaddr = address;
    top_->s_wdata = value;
    top_->s_awvalid = top_->s_wvalid = 1;
    top_->s_bready = 1;
    clock();
    top_->s_awvalid = top_->s_wvalid = 0;
    clock();
  }
  void set64(uint32_t address, uint64_t value) {
    set(address, static_cast<uint32_t>(value));
    set(address + 4, static_cast<uint32_t>(value >> 32));
  }
  uint32_t get(uint32_t address) {
    top_->s_araddr = address;
    top_->s_arvalid = 1;
    top_->s_rready = 1;
    clock();
    top_->s_arvalid = 0;
    top_->clk = 0;
    top_->eval();
    uint32_t value = top_->s_rdata;
    top_->clk = 1;
    top_->eval();
    return value;
  }
  int64_t get64(uint32_t address) {
    return static_cast<int64_t>(get(address) | static_cast<uint64_t>(get(address + 4)) << 32);
  }

  // The tasks of each queue, in order.
  void list_tasks() {
    for (int queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
      tasks_[queue].clear();
      begun_[queue] = ended_[queue] = 0;
    }
    for (int64_t i = 0; i < job_->tasks; ++i) {
      int op = job_->words[i * config_.word_bytes] & ((1 << config_.opcode_bits) - 1);
      if (op >= 1 && op < TW_ACCEL_OPCODES) tasks_[config_.queue[op]].push_back(i);
    }
  }

  // A byte of memory, or nullptr.
  uint8_t *find(uint64_t address, uint8_t **written, int64_t *left) {
    if (address >= kStream) {
      int64_t at = static_cast<int64_t>(address - kStream);
      *left = job_->tasks * config_.word_bytes - at;
      *written = nullptr;
      return *left > 0 ? const_cast<uint8_t *>(job_->words) + at : nullptr;
    }
    for (int i = 0; i < job_->buffers; ++i) {
      tw_accel_buffer &b = job_->buffer[i];
      if (address >= b.address && address < b.address + static_cast<uint64_t>(b.bytes)) {
        int64_t at = static_cast<int64_t>(address - b.address);
        *left = b.bytes - at;
        *written = b.written + at;
        return b.device + at;
      }
    }
    *left = 0;
    return nullptr;
  }

  void cycle(Delay &read_delay, Delay &write_delay) {
    const int bus = config_.bus_bytes;
    bool is_running = now_ >= 0;
    if (is_running) {
      take_requests();
      // What is valid stays so until it is taken.
      top_->m_rvalid =
          !reads_.empty() && reads_.front().ready <= now_ && (top_->m_rvalid || faults_.goes());
      if (top_->m_rvalid) {
        const Burst &burst = reads_.front();
        uint8_t *written;
        int64_t left;
        uint8_t *from = find(burst.address, &written, &left);
        std::memset(bytes_of(top_->m_rdata), 0, bus);
        if (from) std::memcpy(bytes_of(top_->m_rdata), from, left < bus ? left : bus);
        top_->m_rresp = from ? burst.response : 2;
        top_->m_rlast = burst.beats == 1;
      }
      top_->m_bvalid =
          !answers_.empty() && answers_.front().ready <= now_ && (top_->m_bvalid || faults_.goes());
      if (top_->m_bvalid) top_->m_bresp = answers_.front().response;
    }
    top_->clk = 0;
    top_->eval();
    if (!is_running && top_->running) {
      now_ = 0;
      top_->m_rvalid = top_->m_bvalid = 0;
      take_requests();
      top_->eval();
      is_running = true;
    }
    if (is_running) {
      observe(read_delay, write_delay);
      ++now_;
    }
    top_->clk = 1;
    top_->eval();
    if (is_running && was_read_) top_->m_rvalid = 0;
    if (is_running && was_answered_) top_->m_bvalid = 0;
  }

  void take_requests() {
    top_->m_arready = faults_.goes();
    top_->m_awready = faults_.goes();
    top_->m_wready = faults_.goes();
  }

  void observe(Delay &read_delay, Delay &write_delay) {
    const int bus = config_.bus_bytes;
    was_read_ = top_->m_rvalid && top_->m_rready;
    was_answered_ = top_->m_bvalid && top_->m_bready;
    if (was_read_) {
      Burst &burst = reads_.front();
      burst.address += bus;
      if (--burst.beats == 0) reads_.pop_front();
    }
    if (top_->m_arvalid && top_->m_arready) {
      reads_.push_back(
          {top_->m_araddr, top_->m_arlen + 1, now_ + read_delay.next(), faults_.response()});
    }
    if (was_answered_) answers_.pop_front();
    if (top_->m_awvalid && top_->m_awready) {
      writes_.push_back({top_->m_awaddr, top_->m_awlen + 1, 0, faults_.response()});
    }
    if (top_->m_wvalid && top_->m_wready && !writes_.empty()) {
      Burst &burst = writes_.front();
      uint8_t *written;
      for (int i = 0; i < bus; ++i) {
        int64_t left;
        uint8_t *to = bytes_of(top_->m_wstrb)[i / 8] >> i % 8 & 1
                          ? find(burst.address + i, &written, &left)
                          : nullptr;
        if (to && written) {
          *to = bytes_of(top_->m_wdata)[i];
          *written = 1;
        }
      }
      burst.address += bus;
      if (--burst.beats == 0) {
        answers_.push_back({0, 0, now_ + write_delay.next(), burst.response});
        writes_.pop_front();
      }
    }
    for (int queue = 0; queue < TW_ACCEL_QUEUES; ++queue) {
      if (top_->begins >> queue & 1 && begun_[queue] < tasks_[queue].size()) {
        job_->begin[tasks_[queue][begun_[queue]++]] = now_;
      }
      if (top_->ends >> queue & 1 && ended_[queue] < tasks_[queue].size()) {
        job_->end[tasks_[queue][ended_[queue]++]] = now_ + 1;
        ++job_->counters[TW_COUNT_TASKS];
      }
    }
  }

  void collect() {
    top_->m_rvalid = top_->m_bvalid = 0;
    job_->counters[TW_COUNT_CYCLES] = get64(0x20);
    job_->counters[TW_COUNT_GEMM_STEPS] = get64(0x28);
    job_->counters[TW_COUNT_READ_BEATS] = get64(0x30);
    job_->counters[TW_COUNT_WRITE_BEATS] = get64(0x38);
    uint32_t status = get(0x04);
    if (!(status >> 2 & 1)) return;
    static const char *const what[] = {"",
                                       "an instruction that does not decode",
                                       "an address outside of its memory or buffer",
                                       "a counter of tokens overflows",
                                       "nothing has happened for too long",
                                       "",
                                       "memory answers with an error"};
    uint32_t trap = status >> 8 & 0xFF;
    job_->code = TW_ACCEL_ILLEGAL - 1 + static_cast<int32_t>(trap);
    job_->task = static_cast<int32_t>(get(0x08));
    std::snprintf(job_->message, sizeof job_->message, "trap %u: %s", trap,
                  trap < 7 ? what[trap] : "");
  }

  tw_accel_config config_;
  std::unique_ptr<VerilatedContext> context_;
  std::unique_ptr<Vvta_top> top_;
  tw_accel_job *job_ = nullptr;
  Faults faults_{TW_ACCEL_NO_STALLS};
  std::deque<Burst> reads_, writes_, answers_;  // those of writes are answered when all is there
  bool was_read_ = false, was_answered_ = false;
  std::vector<int64_t> tasks_[TW_ACCEL_QUEUES];
  size_t begun_[TW_ACCEL_QUEUES] = {}, ended_[TW_ACCEL_QUEUES] = {};
  int64_t now_ = -1;
};

void *open_machine(const tw_accel_config *config) { return new Machine(*config); }
void run_machine(void *state, tw_accel_job *job) { static_cast<Machine *>(state)->run(job); }
void close_machine(void *state) { delete static_cast<Machine *>(state); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const tw_accel_backend_api tw_accel_backend = {
    TW_ACCEL_VERSION, open_machine, run_machine, close_machine};
