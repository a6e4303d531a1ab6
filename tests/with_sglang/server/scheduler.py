"""A scheduler without a model behind SGLang's own HTTP server, tokenizer manager and detokenizer.

It takes the place of SGLang's scheduler process on the same sockets. Requests, end conditions, limits,
grammars, output messages and metrics are SGLang's own classes; only the tokens are ours.

A prompt that begins with the token of its model's prompts gets an answer from a text of distinct tokens: the
prompt decides which of them is first, and each calls the next. Any other prompt gets 1000, 1001, 1002 and so
on; one that ends with a part of them is continued.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject, create_grammar_backend
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import io_struct
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.managers.scheduler_components.memory_usage import build_memory_usage
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.managers.utils import validate_input_length
from sglang.srt.observability.metrics_collector import QueueCount, SchedulerMetricsCollector, SchedulerStats
from sglang.srt.runtime_context import SpawnRanks, get_context, get_observability, publish
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from sglang.srt.utils.msgspec_utils import msgspec_to_builtins

FIRST: Final = 1000
NUM_OPENINGS: Final = 16
_PREFILL_TOKENS: Final = 4096  # of all prompts together in one step
_TOP: Final = ((-0.5, 7), (-0.75, 8))


@dataclass(frozen=True, slots=True)
class Conduct:
    """What the engine has and says.

    Attributes:
        text: the distinct tokens of its answers.
        begin: the token that a model's prompt begins with.
        endless: a token of prompts whose answer goes round and round.
        slots: requests that decode together, each data-parallel rank.
        pool: tokens in the KV cache.
        window_pool: tokens in the pool of the windowed layers; None if there are none.
        pace: seconds between two tokens.
    """

    text: list[int]
    begin: int
    endless: int
    slots: int
    pool: int
    window_pool: int | None
    pace: float


@dataclass(slots=True)
class _Pool:
    """Stands for the allocator, which limits an answer to what the pool holds."""

    page_size: int

    def max_new_tokens_for_memory(self, input_len: int, max_new_tokens: int, **limits: Any) -> int | None:
        room = int(limits["token_capacity"]) - input_len - self.page_size
        return min(max_new_tokens, room) if room > 0 else None


@dataclass
class StubScheduler:
    """Takes requests from the tokenizer manager and answers them, one token of each a step."""

    server_args: Any
    port_args: Any
    conduct: Conduct
    running: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        args = self.server_args.resolved_dict()
        self.model_config = ModelConfig.from_server_args(self.server_args)
        self.max_total_num_tokens = self.conduct.pool
        self.page_size = args["page_size"] or 1
        # As SGLang's TpModelWorker computes them.
        self.max_req_len = min(self.model_config.context_len - 1, self.conduct.pool - 1)
        self.max_req_input_len = self.max_req_len - 5
        # What SGLang's own function for the limit of an answer reads.
        self.max_new_tokens_limit = None
        self.kv_shard_widening = 1
        self.token_to_kv_pool_allocator = _Pool(self.page_size)
        self.sliding_window_size = None
        self.chunked_prefill_size = 512
        self.tokenizer = get_tokenizer(args["tokenizer_path"])
        self.grammars = create_grammar_backend(
            self.server_args, self.tokenizer, self.model_config.vocab_size, self.model_config.hf_eos_token_id
        )
        self.channels = SchedulerIpcChannels.create(
            port_args=self.port_args,
            is_rank_zero=True,
            skip_tokenizer_init=False,
            metrics_enabled=False,
            enable_scripted_runtime=False,
        )
        self.streamer = SchedulerOutputStreamer(
            send_to_detokenizer=self.channels.send_to_detokenizer,
            tree_cache=None,
            server_args=self.server_args,
            is_generation=True,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            disaggregation_mode=DisaggregationMode.NULL,
            enable_hicache_storage=lambda: False,
        )
        self.metrics = None
        if get_observability().enable_metrics:
            self.metrics = self._metrics()

    def info(self) -> dict[str, Any]:
        """Build what SGLang's scheduler tells its server at the start."""
        return {
            "status": "ready",
            "max_total_num_tokens": self.max_total_num_tokens,
            "max_req_input_len": self.max_req_input_len,
            "startup_time": {},
            "hicache_object_layout": None,
        }

    def run(self) -> None:
        """Answer for ever."""
        poller = zmq.Poller()
        poller.register(self.channels.recv_from_tokenizer, zmq.POLLIN)
        while True:
            begun = time.monotonic()
            while poller.poll(0 if self.running else 100):
                self._take(io_struct.sock_recv(self.channels.recv_from_tokenizer))
                if self.running and time.monotonic() - begun > self.conduct.pace:
                    break
            if self.running:
                self._step()
                time.sleep(max(0.0, self.conduct.pace - (time.monotonic() - begun)))

    def _take(self, message: Any) -> None:
        match message:
            case io_struct.TokenizedGenerateReqInput():
                self._begin(message)
            case io_struct.BatchTokenizedGenerateReqInput():
                for each in message.batch:
                    self._begin(each)
            case io_struct.AbortReq():
                for req in self.running:
                    if message.abort_all or req.rid.startswith(message.rid):
                        req.to_finish = FINISH_ABORT()
            case io_struct.GetInternalStateReq():
                answer = io_struct.GetInternalStateReqOutput(internal_state=self._state())
                self.channels.send_to_tokenizer.send_output(answer, message)

    def _begin(self, message: Any) -> None:
        message.unwrap_pickle_fields()
        req = Req(
            message.rid,
            message.input_text,
            message.input_ids,
            message.sampling_params,
            return_logprob=message.return_logprob,
            top_logprobs_num=message.top_logprobs_num,
            stream=message.stream,
            lora_id=message.lora_id,
            eos_token_ids=self.model_config.hf_eos_token_id,
            vocab_size=self.model_config.vocab_size,
            http_worker_ipc=message.http_worker_ipc,
            time_stats=message.time_stats,
            extra_key=message.extra_key,
        )
        req.tokenizer = self.tokenizer
        Scheduler.init_req_max_new_tokens(self, req)
        if error := validate_input_length(req, self.max_req_input_len, allow_auto_truncate=False):
            req.set_finish_with_abort(error)
        self._guide(req)
        end = min(self.model_config.hf_eos_token_id)
        req.said = Answer(self.conduct, list(req.origin_input_ids), end=end)
        req.num_unread = len(req.origin_input_ids)
        self.running.append(req)
        self._show()

    def _guide(self, req: Any) -> None:
        """Compile the request's grammar, which an invalid one ends; the answer ignores it."""
        for kind, name in (("json", "json_schema"), ("regex", "regex"), ("ebnf", "ebnf")):
            content = getattr(req.sampling_params, name)
            if content is None:
                continue
            compiled, is_cached = self.grammars.get_cached_or_future_value((kind, content), False)
            compiled = compiled if is_cached else compiled.result()
            if isinstance(compiled, InvalidGrammarObject):
                req.set_finish_with_abort(f"Failed to compile {kind} grammar: {compiled.error_message}")

    def _step(self) -> None:
        room = _PREFILL_TOKENS
        for req in self.running:
            num_read = min(room, req.num_unread)
            room -= num_read
            req.num_unread -= num_read
            # A real one decodes once more whatever it ends, if it has read the prompt.
            if not req.num_unread:
                self._decode(req)
            if req.to_finish is not None or req.output_ids:
                req.update_finish_state()
        told = [each for each in self.running if each.output_ids or each.finished()]
        for is_scored in (False, True):
            chosen = [each for each in told if each.return_logprob == is_scored]
            if chosen:
                self.streamer.stream_output(chosen, is_scored)
        self.running = [each for each in self.running if not each.finished()]
        self._show()

    def _decode(self, req: Any) -> None:
        token_id = req.said.token(len(req.output_ids))
        req.output_ids.append(token_id)
        if req.return_logprob:
            top = _TOP[: req.logprob.top_logprobs_num]
            req.logprob.output_token_logprobs_val.append(1 / 256 - 1 - len(req.output_ids) / 256)
            req.logprob.output_token_logprobs_idx.append(token_id)
            req.logprob.output_top_logprobs_val.append([each for each, _ in top])
            req.logprob.output_top_logprobs_idx.append([each for _, each in top])
            req.logprob.output_token_ids_logprobs_val.append([])
            req.logprob.output_token_ids_logprobs_idx.append([])

    def _state(self) -> dict[str, Any]:
        state = dict(get_context().resolved_server_args_dict())
        state["effective_max_running_requests_per_dp"] = self.conduct.slots
        state["memory_usage"] = build_memory_usage(
            weight_gb=1.0,
            kv_cache_gb=1.0,
            startup_available_gb=1.0,
            token_capacity=self.conduct.pool,
            token_capacity_swa=self.conduct.window_pool,
            target_graph_memory_usage=None,
            draft_graph_memory_usage=None,
        )
        state.pop("custom_sigquit_handler", None)
        found: dict[str, Any] = msgspec_to_builtins(state)
        return found

    def _metrics(self) -> Any:
        collector = SchedulerMetricsCollector.init_new(
            server_args=self.server_args,
            enable_priority_scheduling=False,
            enable_lora=False,
            enable_hierarchical_cache=False,
        ).collector
        collector.emit_constants(
            max_total_num_tokens=self.conduct.pool,
            max_total_num_tokens_swa=self.conduct.window_pool,
            weight_memory_usage_gb=1.0,
            kv_cache_memory_usage_gb=1.0,
            graph_memory_usage_gb={},
            max_running_requests_under_SLO=None,
            page_size=self.page_size,
            num_pages=self.conduct.pool // self.page_size,
            context_len=self.model_config.context_len,
            startup_available_gpu_memory_gb=1.0,
        )
        collector.log_stats(SchedulerStats())
        return collector

    def _show(self) -> None:
        """Set the gauges; a real scheduler does so each few steps."""
        if self.metrics is None:
            return
        used = sum(len(each.origin_input_ids) + len(each.output_ids) for each in self.running)
        stats = SchedulerStats(num_running_reqs=QueueCount(len(self.running)), num_used_tokens=used)
        self.metrics.log_stats(stats)


class Answer:
    """The tokens of one answer."""

    def __init__(self, conduct: Conduct, prompt: list[int], *, end: int) -> None:
        self._text = conduct.text if prompt[0] == conduct.begin else None
        self._end = end
        self._is_endless = conduct.endless in prompt
        self._first = _counted(prompt) if self._text is None else _opening(self._text, prompt)

    def token(self, place: int) -> int:
        """Return the token at this place, from 0."""
        if self._text is None:
            return FIRST + self._first + place
        found = self._first + place
        if self._is_endless:
            return self._text[found % len(self._text)]
        return self._text[found] if found < len(self._text) else self._end


def _counted(prompt: list[int]) -> int:
    """Return how many tokens of the counted answer the prompt ends with."""
    given = prompt[-1] - FIRST + 1
    is_continued = 0 < given < len(prompt) and prompt[-given:] == [*range(FIRST, FIRST + given)]
    return given if is_continued else 0


def _opening(text: list[int], prompt: list[int]) -> int:
    """Return the place of the answer's first token in the text: the next one if the prompt ends inside it."""
    if prompt[-1] in text:
        return text.index(prompt[-1]) + 1
    return sum(prompt) % NUM_OPENINGS


def run(server_args: Any, port_args: Any, pipe_writer: Any, conduct: Conduct) -> None:
    """Run the scheduler in this process, as SGLang's `run_scheduler_process` does."""
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    scheduler = StubScheduler(server_args, port_args, conduct)
    pipe_writer.send(scheduler.info())
    scheduler.run()
