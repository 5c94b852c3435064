"""What users of other engines reported about speculative decoding, and the test that keeps it from happening here.

Each scenario names the public report it comes from and the tests (folder/file: function) that cover it; those that
cannot apply say why.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Scenario:
    reports: str
    what: str
    tests: tuple[str, ...] = ()
    not_here: str = ""


SIMULATION = "runtime/test_planner_simulation.py: test_never_slower_than_plain_and_near_the_best_fixed_length"
GREEDY = "runtime/test_exactness.py: test_greedy_equals_plain"
SAMPLED = "runtime/test_acceptance.py: test_answers_fit_the_target_whatever_drafts_and_verifies"
PLANTED = "runtime/test_planted_bugs.py: test_both_tests_find_a_planted_bug"
OFF = "runtime/test_speculation.py: test_speculation_can_be_off_for_one_request"
CHAT_CACHE = "runtime/test_chat.py: test_a_six_turn_chat_reads_every_token_once"

SCENARIOS = (
    Scenario("llama.cpp#10455", "a processor-only pair is slower than plain", (SIMULATION,)),
    Scenario(
        "llama.cpp#25908",
        "a fixed cost a round eats the gain of a good draft",
        ("runtime/test_planner_simulation.py: test_a_costly_round_does_not_ruin_it",),
    ),
    Scenario("llama.cpp#23052", "creative text wants speculation off, code wants it on", (OFF, SIMULATION)),
    Scenario(
        "llama.cpp#10664, #23544",
        "the gain vanishes with another quantization or build",
        not_here="speed is measured by `specdec bench`, never asserted by a test",
    ),
    Scenario("vllm#16258", "lookup on a tiny target only costs", (SIMULATION,)),
    Scenario("openvino_notebooks#2621", "an adaptive length is slower than a fixed one", (SIMULATION,)),
    Scenario(
        "lmstudio#458",
        "the draft should get the better device",
        not_here="draft and target run on the device they are given; choosing one is `specdec compare`'s business",
    ),
    Scenario("textgen#6999, sglang#30263, llama.cpp#19744", "an off switch for each request", (OFF,)),
    Scenario(
        "llama.cpp#25618",
        "greedy output diverges on a quantized target",
        (
            GREEDY,
            "runtime/test_decoder.py: test_any_cut_into_passes_gives_the_same_logits",
            "runtime/test_speculation.py: test_three_hundred_tokens_stay_identical",
        ),
    ),
    Scenario(
        "mlx-lm#1423, #1470",
        "a rotating cache that is full cannot be trimmed",
        ("runtime/test_answer.py: test_the_models_last_position_can_be_reached",),
    ),
    Scenario(
        "mlx-lm#1109",
        "rejected drafts stay in the state",
        ("runtime/test_decoder.py: test_any_accepts_and_rejects_equal_a_fresh_forward",),
    ),
    Scenario(
        "vllm#5313, #7627, ArcticInference#143",
        "temperature 0 differs from plain and nobody says so",
        ("runtime/test_exactness.py: test_self_test_finds_no_difference",),
    ),
    Scenario(
        "onnxruntime#29849",
        "int8 activations flip the likeliest token against float ones",
        not_here="plain decoding runs the very same graph; what quantization costs is in the export's report",
    ),
    Scenario(
        "DeepSpec#31, dflash#74, vllm#10198, mistral.rs#2424, mlx-swift-lm#459",
        "sampled output is not distributed as the target's",
        (
            SAMPLED,
            PLANTED,
            "runtime/test_acceptance.py: test_every_path_adds_up_to_the_targets_own_distribution",
        ),
    ),
    Scenario(
        "vllm#13196",
        "the seed is ignored",
        (
            "runtime/test_exactness.py: test_seeded_sampling_equals_plain",
            "runtime/test_exactness.py: test_another_seed_is_another_answer",
        ),
    ),
    Scenario(
        "vllm#6718, mlx-node#11",
        "penalties do not see the drafted tokens before a row",
        ("runtime/test_acceptance.py: test_greedy_penalties_see_the_draft", SAMPLED),
    ),
    Scenario(
        "transformers#47912, koboldcpp#1276",
        "text goes on after an EOS inside an accepted block",
        ("runtime/test_answer.py: test_eos_inside_an_accepted_block_ends_the_answer",),
    ),
    Scenario(
        "sglang#31599, #33758",
        "the length cap hides a stop string inside the budget",
        ("runtime/test_answer.py: test_a_stop_string_in_the_round_of_the_length_cap",),
    ),
    Scenario(
        "onnxruntime-genai#2528",
        "after a stop string caches and counters do not follow the kept text",
        (
            "runtime/test_answer.py: test_a_stop_string_that_spans_tokens",
            "runtime/test_answer.py: test_a_stop_string_changes_nothing_before_it",
        ),
    ),
    Scenario(
        "openvino.genai#1951, #3293",
        "a drafted EOS that the target rejects ends the answer",
        ("runtime/test_answer.py: test_an_eos_that_the_target_rejects_goes_on",),
    ),
    Scenario(
        "vllm#56101, sglang#39826",
        "tokens behind EOS are counted",
        ("runtime/test_answer.py: test_eos_inside_an_accepted_block_ends_the_answer",),
    ),
    Scenario(
        "llama.cpp#10641, #22554, vllm#5342, lmstudio#499",
        "a draft longer than the room left, or a draft model with a shorter context, crashes",
        (
            "runtime/test_answer.py: test_the_context_limit_shortens_the_last_draft",
            "runtime/test_speculation.py: test_a_draft_with_a_shorter_context_stops_drafting",
        ),
    ),
    Scenario(
        "llama.cpp#28433, TensorRT-LLM#9279",
        "memory for the draft's cache is sized wrongly",
        ("runtime/test_speculation.py: test_a_draft_with_a_shorter_context_stops_drafting",),
    ),
    Scenario(
        "llama.cpp#25725, #11200, mlx-vlm#1956",
        "a quantized draft cache drops acceptance to nothing",
        not_here="caches hold what the graph computes, never a second quantization",
    ),
    Scenario(
        "sglang#32459, mlx-examples#1155",
        "speculation destroys prefix reuse between turns",
        (CHAT_CACHE, "runtime/test_chat.py: test_the_cache_does_not_change_the_answers"),
    ),
    Scenario(
        "vllm-metal#716",
        "a draft cache is stale after rounds without drafts",
        ("runtime/test_speculation.py: test_a_draft_that_rested_is_as_good_as_before",),
    ),
    Scenario(
        "llama.cpp#20039",
        "a recurrent target cannot rewind",
        ("runtime/test_signature.py: test_a_recurrent_state_cannot_be_rolled_back",),
    ),
    Scenario(
        "Qwen3#326, vllm#7252, #13849, #10913, #42775",
        "padded vocabularies of different width are refused, or padding is said",
        (
            "models/test_pair.py: test_padded_widths_may_differ",
            "runtime/test_speculation.py: test_padding_is_never_said",
        ),
    ),
    Scenario(
        "llama.cpp#3812, koboldcpp#2325, lmstudio#481",
        "vocabularies that differ draft garbage, or one harmless token rules a pair out without a word",
        ("models/test_pair.py: test_differing_ids_are_counted_and_shown",),
    ),
    Scenario(
        "transformers#46936, #30413",
        "another tokenizer crashes or changes the output",
        ("models/test_pair.py: test_misfits_are_refused_with_the_reason",),
    ),
    Scenario(
        "lmstudio#1914, #1597, #1761, mlx-engine#280",
        "speculation silently does nothing",
        ("runtime/test_speculation.py: test_a_single_model_says_that_it_has_no_draft",),
    ),
    Scenario(
        "llama.cpp (add_bos, add_eos)",
        "a pair is refused for its begin and end flags",
        ("models/test_pair.py: test_end_of_text_and_template_are_only_notes",),
    ),
    Scenario(
        "lmdeploy#4551, vllm#34650, #36138, ollama#18105",
        "a grammar is ignored under speculation",
        not_here="no constrained decoding is offered",
    ),
    Scenario(
        "exllamav3#374, ollama#5800, jan#8653, lmstudio#1531",
        "lookup and draft model exclude each other",
        ("runtime/test_speculation.py: test_both_proposers_contribute",),
    ),
    Scenario(
        "llama-cpp-python#70",
        "the process aborts at the end of the context",
        (
            "runtime/test_decoder.py: test_a_full_context_says_how_many_tokens_it_has",
            "runtime/test_answer.py: test_a_prompt_that_fills_the_context_is_refused_with_counts",
        ),
    ),
)


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.reports.split(",")[0])
def test_every_scenario_has_a_test_or_a_reason(scenario: Scenario) -> None:
    assert bool(scenario.tests) != bool(scenario.not_here)
    for test in scenario.tests:
        file, _, name = test.partition(": ")
        assert name in functions(TESTS / file)


def test_all_thirty_five_are_here() -> None:
    assert len(SCENARIOS) == 35
