"""Models, settings, views and the comparison."""

from dataclasses import replace
from functools import partial

from specdec_onnx.models.places import folder_of
from specdec_onnx.tui.conversation import titled
from specdec_onnx.tui.screens.chat_files import Files
from specdec_onnx.tui.widgets.job import JobBar
from specdec_onnx.tui.widgets.turn import VIEWS


class Places(Files):
    """What an answer is made with, and how it is looked at."""

    def action_models(self) -> None:
        """Choose a pair."""
        self.run_worker(self._models(), group="dialog", exclusive=True)

    async def _models(self) -> None:
        from specdec_onnx.tui.screens.models import ModelsScreen

        chosen = await self.app.push_screen_wait(ModelsScreen(self.services, self.conversation.model))
        if chosen is None:
            return
        kind, name = chosen
        if kind == "open":
            self.use_model(name)
        else:
            self.get_pair(name)

    def get_pair(self, name: str) -> None:
        """Download and export a catalog entry; the chat stays usable meanwhile."""
        if not self.query_one(JobBar).get(name, folder_of(name)):
            self.notify("One pair at a time.", title="A pair is being prepared")

    def use_model(self, pair: str) -> None:
        """Open a pair for this conversation, and as the first choice of the next start."""
        self.kept(partial(self.conversation.configure, self.conversation.settings, pair))
        self.services.preferences.model = pair
        self.services.host.open(pair, self.conversation.settings.device)
        self.refresh_bars()

    def action_settings(self) -> None:
        """Set system prompt, sampling and device."""
        self.run_worker(self._settings(), group="dialog", exclusive=True)

    async def _settings(self) -> None:
        from specdec_onnx.tui.screens.settings import SettingsScreen

        chosen = await self.app.push_screen_wait(SettingsScreen(self.conversation.settings))
        if chosen is not None:
            self.kept(partial(self.conversation.configure, chosen, self.conversation.model))
            if self.conversation.model:
                self.services.host.open(self.conversation.model, chosen.device)
            self.refresh_bars()

    def action_keys(self) -> None:
        """Every key."""
        from specdec_onnx.tui.screens.keys import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_token_view(self) -> None:
        """Text, tokens, trace, and round again."""
        following = VIEWS[(VIEWS.index(self.transcript.view) + 1) % len(VIEWS)]
        self.transcript.set_view(following)
        names = {
            "text": "Text",
            "tokens": "Tokens by source",
            "trace": "Trace: with rejected tokens and rounds",
        }
        self.notify(names[following], timeout=2)

    def action_speculation(self) -> None:
        """Switch speculation for the answers to come."""
        settings = replace(self.conversation.settings, speculate=not self.conversation.settings.speculate)
        self.kept(partial(self.conversation.configure, settings, self.conversation.model))
        self.refresh_bars()

    def action_compare(self) -> None:
        """Answer the last question plainly and speculatively."""
        from specdec_onnx.tui.screens.compare import CompareScreen

        question = self.chosen("user")
        if question is None or not self.ready():
            return
        if self.services.host.state.session is None:
            self.notify("Wait until it is loaded, or choose one with Ctrl+O.", title="No model is ready")
            return
        answers = [turn for turn in self.conversation.line if turn.parent == question.id]
        prompt = self.conversation.messages(answers[0]) if answers else None
        if prompt:
            screen = CompareScreen(
                self.services.host, prompt, self.conversation.settings, titled(question.text)
            )
            self.app.push_screen(screen)
