import type { Messages } from './english.ts';
import { createFormats } from './formats.ts';

// Typography: a no-break space before a colon and inside quotation marks (\u00a0), a narrow one before ; ? ! (\u202f).

const NEW_CODE = 'Recommencez sur votre appareil pour obtenir un nouveau code.';

export const frenchMessages: Messages = {
  language: 'fr',

  ...createFormats('fr-FR', {
    ago: 'à l’instant',
    ahead: 'dans moins d’une minute',
  }),
  formatStep: (step, count) => `Étape ${step} sur ${count}`,
  errorTitle: (title) => `Erreur\u00a0: ${title}`,

  code: {
    title: 'Connecter un appareil',
    lead: 'Saisissez le code affiché par votre appareil ou votre application.',
    leadPrefilled: 'Vérifiez que votre appareil ou votre application affiche bien ce code.',
    label: 'Code',
    hint: 'Huit lettres, par exemple BCDF-GHJK. Les majuscules et le tiret sont facultatifs.',
    wrong:
      'Ce code est incorrect ou a expiré. Vérifiez-le et réessayez, ou recommencez sur votre appareil pour obtenir un nouveau code.',
    missing: 'Saisissez le code affiché par votre appareil.',
    wrongLink:
      'Le code figurant dans le lien n’est pas valide et n’a pas été repris. Saisissez le code affiché par votre appareil.',
  },

  signIn: {
    title: 'Se connecter',
    lead: 'Connectez-vous pour examiner la demande. Rien n’a encore été approuvé.',
    leadGrants: 'Connectez-vous pour voir les applications et les appareils que vous avez approuvés.',
    leadCode: 'Connectez-vous, puis saisissez votre code. Rien n’a encore été approuvé.',
    userName: 'Nom d’utilisateur',
    password: 'Mot de passe',
    wrong: 'Nom d’utilisateur ou mot de passe incorrect.',
    or: 'ou',
    certificate: 'Se connecter avec un certificat',
    certificateHint: 'Votre navigateur a présenté un certificat.',
    certificateWrong:
      'Ce certificat ne vous permet pas de vous connecter. Essayez une autre méthode de connexion.',
    certificateMissing:
      'Votre navigateur n’a pas présenté de certificat. Essayez une autre méthode de connexion.',
    with: (provider) => `Se connecter avec ${provider}`,
    none: 'Vous ne pouvez pas vous connecter avec ce navigateur. Contactez votre administrateur.',
    cancelled: 'La connexion n’a pas abouti. Veuillez réessayer.',
    notAccepted: 'La connexion a échoué. Veuillez réessayer.',
    unknown: 'Votre compte n’a pas accès à ce service. Contactez votre administrateur.',
  },

  redirectToProvider: {
    title: 'Redirection en cours…',
    formatLead: (provider) => `La connexion se poursuit sur ${provider}.`,
  },
  signInComplete: { title: 'Connexion réussie', lead: 'Redirection en cours.' },

  review: {
    title: 'Approuver cette demande\u202f?',
    requestsAccess: ' souhaite agir en votre nom.',
    codeLabel: 'Comparez le code',
    codeHint: 'Il doit être identique à celui de votre appareil.',
    may: 'Cette application pourra\u00a0:',
    technical: 'Détails techniques',
    requestedAt: 'Demande',
    device: 'Nom de l’appareil',
    deviceHint: 'Indiqué par l’appareil, non vérifié',
    from: 'Adresse IP',
    warning:
      'N’approuvez que si vous venez de lancer cette demande vous-même. Si quelqu’un vous a envoyé le code ou un lien, refusez.',
    approve: 'Approuver',
    deny: 'Refuser',
    notYou: 'Ce n’est pas vous\u202f? Se déconnecter',
  },

  authorization: {
    redirecting: { title: 'Redirection en cours…', lead: 'La page de connexion va s’ouvrir.' },
    returnsTo: 'Retour vers',
    address: 'Adresse de l’application',
    audience: 'Pour l’API',
    formatClaimedName: (name) =>
      `se présente sous le nom «\u00a0${name}\u00a0» et n’est pas enregistrée ici.`,
    unregistered: 'n’est pas enregistrée ici.',
    loopback: 'une application sur cet ordinateur',
    formatApp: (scheme) => `l’application ${scheme} sur cet appareil`,
    formatRequestId: (id) => `Identifiant de requête\u00a0: ${id}`,
    warning:
      'N’approuvez que si vous venez d’ouvrir cette page vous-même depuis l’application. Si quelqu’un vous a envoyé un lien, refusez.',
    notices: {
      invalid: {
        title: 'Demande non valide',
        lead: 'La demande de l’application ne peut pas être traitée. Rien n’a été approuvé. Si le problème se reproduit, contactez le développeur de l’application.',
      },
      notRegistered: {
        title: 'Demande non valide',
        lead: 'Cette application n’est pas enregistrée auprès de ce service, ou sa demande ne correspond pas à son enregistrement. Rien n’a été approuvé. Contactez le développeur de l’application ou l’administrateur de ce service.',
      },
      expired: {
        title: 'Demande expirée',
        lead: 'Cette demande est trop ancienne ou a été lancée dans un autre navigateur. Rien n’a été approuvé. Revenez à l’application et recommencez.',
      },
      decided: {
        title: 'Demande déjà traitée',
        lead: 'Cette demande a déjà été approuvée ou refusée. Revenez à l’application. Si elle attend toujours, recommencez depuis celle-ci.',
      },
    },
  },

  notAllowed: {
    title: 'Vous ne pouvez pas approuver cette demande',
    integration:
      'Vous n’avez pas accès à cette application. Si vous en avez besoin, contactez votre administrateur.',
    scope: (excess) =>
      `Cette application demande plus de droits que vous ne pouvez en accorder\u00a0: ${excess}.`,
    disabled: 'Votre compte est désactivé.',
  },

  approved: {
    title: 'Demande approuvée',
    lead: ' peut désormais agir en votre nom.',
    close: 'Vous pouvez fermer cette page et revenir à votre appareil.',
  },
  denied: {
    title: 'Demande refusée',
    lead: ' n’a pas obtenu l’accès.',
    close: 'Vous pouvez fermer cette page.',
  },
  signOut: 'Se déconnecter',
  signedInAs: 'Compte connecté\u00a0: ',
  next: 'Continuer',
  expires: 'Expiration',

  grants: {
    title: 'Applications et appareils approuvés',
    lead: 'Ces applications et appareils peuvent agir en votre nom. Révoquez l’accès de ceux que vous n’utilisez plus ou que vous ne reconnaissez pas.',
    none: 'Aucune application ni aucun appareil ne peut agir en votre nom.',
    pending: (name) =>
      `Vous avez approuvé ${name}. L’accès apparaîtra ici dès que votre appareil l’aura récupéré, en général en quelques secondes.`,
    may: 'Autorisations\u00a0:',
    by: {
      device: 'Approuvé dans le navigateur',
      code: 'Approuvé dans le navigateur',
      certificate: 'Accordé avec votre certificat',
      exchange: 'Accordé avec un jeton de votre fournisseur d’identité',
      client: 'Accordé à l’application elle-même',
    },
    created: 'Accès accordé',
    lastRenewed: 'Dernier renouvellement',
    neverRenewed: 'Jamais',
    discontinued: 'N’est plus disponible',
    revokeLabel: 'Révoquer…',
    formatRevokeLabel: (name) => `Révoquer l’accès de ${name}`,
    more: 'Afficher la suite',
  },
  revoke: {
    title: 'Révoquer l’accès\u202f?',
    lead: ' perdra immédiatement cet accès. Vos autres approbations ne sont pas concernées.',
    confirm: 'Révoquer',
    cancel: 'Annuler',
    done: (name) => `L’accès de ${name} a été révoqué.`,
    missing: { title: 'Accès introuvable', lead: 'Il a peut-être expiré ou déjà été révoqué.' },
    back: 'Retour à la liste',
  },
  languageLabel: 'Langue',
  enterAnotherCode: 'Saisir un autre code',
  startAgain: 'Recommencer',
  tryAgain: 'Réessayer',

  alreadyApproved: {
    title: 'Demande déjà approuvée',
    lead: `Cette demande a déjà été approuvée. Votre appareil attend-il encore\u202f? ${NEW_CODE}`,
  },
  alreadyDenied: {
    title: 'Demande déjà refusée',
    lead: `Cette demande a déjà été refusée. ${NEW_CODE}`,
  },
  closed: {
    title: 'Demande clôturée',
    lead: `Cette demande a été clôturée après un trop grand nombre d’échecs de connexion. ${NEW_CODE}`,
  },
  codeInvalid: { title: 'Code incorrect', lead: `Ce code est incorrect ou a expiré. ${NEW_CODE}` },
  codeExpired: {
    title: 'Code expiré',
    lead: `Les codes ne sont valables que quelques minutes. Rien n’a été approuvé. ${NEW_CODE}`,
  },
  withdrawn: {
    title: 'Application indisponible',
    lead: 'Cette application n’est plus disponible. Contactez votre administrateur.',
  },
  tooManyAttempts: {
    title: 'Trop de tentatives',
    lead: (wait) => `Veuillez réessayer ${wait}.`,
    leadSignIn: (wait) =>
      `De nombreux codes incorrects sont saisis en ce moment. Le vôtre est peut-être correct\u00a0: connectez-vous d’abord, puis saisissez-le, ou réessayez ${wait}.`,
  },
  expired: {
    title: 'Page expirée',
    lead: 'Pour votre sécurité, cette page n’est valable que peu de temps et nécessite des cookies. Rien n’a été approuvé.',
  },
  rejected: {
    title: 'Demande non acceptée',
    lead: 'La page est peut-être restée ouverte trop longtemps ou dans plusieurs onglets. Rien n’a été modifié.',
  },
  badRequest: {
    title: 'Requête incorrecte',
    lead: 'La requête n’a pas pu être lue. Rien n’a été modifié.',
  },
  serviceUnavailable: {
    title: 'Service temporairement indisponible',
    lead: 'Ce service est temporairement indisponible.',
  },
  directoryUnavailable: {
    title: 'Connexion temporairement impossible',
    lead: 'Le service de connexion est injoignable pour le moment.',
  },
  retryLater: {
    device: 'Votre code reste valable jusqu’à son expiration. Veuillez réessayer dans un instant.',
    authorization:
      'La demande de l’application reste valable quelques minutes. Veuillez réessayer dans un instant.',
    other: 'Veuillez réessayer dans un instant.',
  },
  overloaded: {
    title: 'Service saturé',
    lead: 'De nombreuses personnes se connectent en ce moment. Veuillez réessayer dans un instant.',
  },
  internalError: {
    title: 'Une erreur s’est produite',
    lead: 'Le problème vient de notre côté. Veuillez réessayer.',
    reference: (id) =>
      `Si le problème persiste, communiquez cet identifiant de requête à votre administrateur\u00a0: ${id}`,
  },
  notFound: { title: 'Page introuvable', lead: 'Vérifiez l’adresse.' },
  root: {
    api: {
      title: 'Ceci est une API',
      lead: 'Les programmes utilisent cette adresse avec un jeton d’accès. Sans jeton, il n’y a rien à voir ici dans un navigateur.',
    },
    pages: {
      title: 'Appareils et applications',
      lead: 'Cette adresse permet de connecter des appareils et de gérer l’accès des applications.',
    },
    links: 'Vous cherchez l’une de ces pages\u202f?',
  },
  methodNotAllowed: {
    title: 'Requête incorrecte',
    lead: 'Veuillez recommencer à partir de la première page.',
  },

  permissions: {
    read: 'consulter',
    view: 'consulter',
    list: 'lister',
    search: 'rechercher dans',
    write: 'modifier',
    update: 'modifier',
    edit: 'modifier',
    create: 'créer',
    add: 'ajouter',
    delete: 'supprimer',
    remove: 'retirer',
    upload: 'téléverser',
    download: 'télécharger',
    send: 'envoyer',
    share: 'partager',
    run: 'exécuter',
    execute: 'exécuter',
    start: 'démarrer',
    stop: 'arrêter',
    approve: 'approuver',
    manage: 'gérer',
    admin: 'administrer',
  },
  separator: '\u202f; ',
  quote: (word) => `«\u00a0${word}\u00a0»`,
  describePermissions: (verbs, resource) => `${verbs} ${resource}`,
  describeOtherPermissions: (permissions, resource) => `utiliser ${resource} (${permissions})`,
  describeBareResource: (resource) => `utiliser ${resource}`,
};
