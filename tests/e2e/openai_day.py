"""What an OpenAI client does with a real model: chat, completions, and a chain of responses."""

from typing import Any

from openai import AsyncOpenAI

QUESTION = "What is the capital of France? Answer briefly."
GREEDY: dict[str, Any] = {"model": "any", "temperature": 0}


async def openai_day(url: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
        answer = await _chat(ai)
        await _completions(ai)
        await _responses(ai, answer)


async def _chat(ai: AsyncOpenAI) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    plain = await ai.chat.completions.create(messages=messages, max_completion_tokens=16, **GREEDY)
    answer = plain.choices[0].message.content
    assert answer
    assert "Paris" in answer
    stream = await ai.chat.completions.create(
        messages=messages,
        max_completion_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_progress": True},
        **GREEDY,
    )
    chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == answer
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == plain.usage.prompt_tokens - 1
    seeded = [
        await ai.chat.completions.create(model="any", messages=messages, seed=7, max_tokens=8, temperature=1)
        for _ in range(2)
    ]
    assert len({one.choices[0].message.content for one in seeded}) == 1
    return str(answer)


async def _completions(ai: AsyncOpenAI) -> None:
    done = await ai.completions.create(prompt="The capital of France is", max_tokens=4, echo=True, **GREEDY)
    assert done.choices[0].text.startswith("The capital of France is Paris")
    stopped = await ai.completions.create(
        prompt="The capital of France is", max_tokens=16, stop=["Paris"], **GREEDY
    )
    assert (stopped.choices[0].text.strip(), stopped.choices[0].finish_reason) == ("", "stop")


async def _responses(ai: AsyncOpenAI, answer: str) -> None:
    first = await ai.responses.create(input=QUESTION, max_output_tokens=16, **GREEDY)
    assert first.output_text == answer
    asked: dict[str, Any] = {"input": "And of Italy?", "previous_response_id": first.id}
    counted = await ai.responses.input_tokens.count(**asked)
    async with ai.responses.stream(max_output_tokens=16, **asked, **GREEDY) as stream:
        kinds = [event.type async for event in stream]
        second = await stream.get_final_response() if "response.completed" in kinds else None
    if second is None:  # cut at its length: the same again, whole
        second = await ai.responses.create(max_output_tokens=16, **asked, **GREEDY)
    assert counted.input_tokens == second.usage.input_tokens
    assert second.previous_response_id == first.id
    kept = first.usage.input_tokens + first.usage.output_tokens - 1
    assert second.usage.input_tokens_details.cached_tokens >= kept
    assert (await ai.responses.retrieve(second.id)).output_text == second.output_text
